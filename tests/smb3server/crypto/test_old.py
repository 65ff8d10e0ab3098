from __future__ import annotations

import pytest

from smb3server.crypto.old import md4, rc4


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("", "31d6cfe0d16ae931b73c59d7e0c089c0"),
        ("abc", "a448017aaf21d8525fc10ae87aa6729d"),
        ("abcdefghijklmnopqrstuvwxyz", "d79e1c308aa5bbcdeea8ed63df412da9"),
        ("1234567890" * 8, "e33b4ddc9c38f2199c3e7b164fcc0536"),
    ],
)
def test_md4_of_rfc_1320(text: str, digest: str) -> None:
    assert md4(text.encode()).hex() == digest


def test_rc4_of_rfc_6229() -> None:
    key = bytes.fromhex("0102030405060708090a0b0c0d0e0f10")
    assert rc4(key, bytes(16)).hex() == "9ac7cc9a609d1ef7b2932899cde41b97"

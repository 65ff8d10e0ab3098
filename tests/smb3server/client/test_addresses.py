"""Addresses, names and credentials: what is taken, and what is refused with a remedy."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.client import credentials, errors, names
from smb3server.client.address import Address, is_remote, parse
from smb3server.client.options import ConnectOptions
from smb3server.wire.status import NtStatus, StatusError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("smb://alice@nas/data/a/b", Address("nas", "data", "a/b", user="alice")),
        ("smb://DOM;alice@nas:1445/data", Address("nas", "data", port=1445, user="alice", domain="DOM")),
        ("smbd://alice:s%40c:ret@nas/data", Address("nas", "data", user="alice", password="s@c:ret")),
        ("//nas/data/100%25?", Address("nas", "data", "100%25?")),
        ("\\\\nas\\data\\a b", Address("nas", "data", "a b")),
        ("smb://nas/data/a%20b%3F//./c/../d", Address("nas", "data", "a b?/d")),
        ("smb://[fe80::1%25eth0]:5/d", Address("fe80::1%eth0", "d", port=5)),
        ("CIFS://nas", Address("nas")),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    found = parse(text)
    assert found == expected
    assert is_remote(text)
    assert "ret" not in repr(found)
    assert parse(str(found)).place == found.place


def test_addresses_of_one_connection() -> None:
    assert parse("smb://NAS/Data/x").place == parse("//nas/DATA").place
    assert parse("//nas/stra\u00dfe").place != parse("//nas/strasse").place
    assert parse("//nas/data").place != parse("smb://u@nas/data").place


@pytest.mark.parametrize(
    "text", ["nas/data", "http://nas/x", "smb://", "smb:///data", "smb://n:0/x", "smb://n:99999/x", "smb://a/b/../.."]
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r"smb://|port|leads out"):
        parse(text)


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs", "Co"]), min_size=1, max_size=255))
def test_every_local_name_comes_back_from_a_share(name: str) -> None:
    if name in (".", ".."):
        return
    carried = names.to_share(name)
    assert not set(carried) & set('"*:<>?\\|') and not carried.endswith((" ", "."))
    assert names.from_share(carried) == name
    part = names.part_of(name, "0123abcd")
    assert len(os.fsencode(part)) <= 255 and len(part.encode("utf-16-le")) // 2 <= 255


def test_a_path_never_leads_out() -> None:
    assert names.clean("/a//./b/../c/") == "a/c"
    for path in ("..", "a/../..", "../x", "a\0b"):
        with pytest.raises(OSError, match=r"leads out|NUL"):
            names.clean(path)


def test_where_passwords_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SMB3SERVER_PASSWORD", raising=False)
    where = parse("smb://alice@nas/data")
    with pytest.raises(credentials.CredentialsError, match="SMB3SERVER_PASSWORD"):
        credentials.find(where, ConnectOptions())
    assert (
        credentials.find(where, ConnectOptions(ask=lambda question: question)).password == "Password of alice for nas: "
    )
    file = credentials.default_file()
    file.parent.mkdir()
    file.write_text("[nas]\nuser = Alice\npassword = p%=w\ndomain = D\n[*]\nuser = bob\npassword = other\n")
    file.chmod(0o644)
    with pytest.raises(credentials.CredentialsError, match="chmod 600"):
        credentials.find(where, ConnectOptions())
    file.chmod(0o600)
    assert credentials.find(where, ConnectOptions()) == credentials.Login("alice", "p%=w", "D")
    assert credentials.find(parse("//nas/data"), ConnectOptions()) == credentials.Login("Alice", "p%=w", "D")
    assert credentials.find(parse("//elsewhere/data"), ConnectOptions()).user == "bob"
    with pytest.raises(credentials.CredentialsError):
        credentials.find(parse("smb://carol@nas/data"), ConnectOptions())
    monkeypatch.setenv("SMB3SERVER_PASSWORD", "env")
    assert credentials.find(where, ConnectOptions()).password == "env"
    assert credentials.find(where, ConnectOptions(password="given")).password == "given"
    assert credentials.find(where, ConnectOptions(credentials_file=file)).password == "p%=w"
    assert credentials.find(where, ConnectOptions(anonymous=True)) == credentials.Login()
    assert "env" not in repr(credentials.find(where, ConnectOptions()))
    plain = tmp_path / "mount"
    plain.write_text("username=alice\npassword=q\n")
    plain.chmod(0o600)
    assert credentials.find(where, ConnectOptions(credentials_file=plain)).password == "q"
    plain.write_text("pasword=q\n")
    with pytest.raises(credentials.CredentialsError, match="unknown key pasword"):
        credentials.find(where, ConnectOptions(credentials_file=plain))


def test_errors_are_those_of_python() -> None:
    error = errors.of(StatusError(NtStatus.OBJECT_NAME_NOT_FOUND), "a/b")
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "a/b")
    assert isinstance(error, errors.RemoteError) and error.status_name == "STATUS_OBJECT_NAME_NOT_FOUND"
    assert str(error) == "No such file or directory: 'a/b' (STATUS_OBJECT_NAME_NOT_FOUND)"
    assert isinstance(errors.of(StatusError(NtStatus.ACCESS_DENIED)), PermissionError)
    assert isinstance(errors.of(StatusError(NtStatus.DIRECTORY_NOT_EMPTY)), OSError)
    both = pickle.loads(pickle.dumps(errors.of(StatusError(0xC0000035), "a", "b")))
    assert isinstance(both, FileExistsError) and str(both).startswith("File exists: 'a' -> 'b'")

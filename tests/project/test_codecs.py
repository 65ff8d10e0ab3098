"""Every ``Codec`` of the project against its construct layout: found by import, so that none is forgotten."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.codec import Codec
from smbdirect.errors import DecodeError

PACKAGES = ("smbdirect", "smb3server.wire", "witness")


def modules() -> Iterator[str]:
    for name in PACKAGES:
        package = importlib.import_module(name)
        yield name
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            yield module.name


def codecs() -> dict[str, Codec]:
    found = {}
    for name in modules():
        for attribute, value in vars(importlib.import_module(name)).items():
            if isinstance(value, Codec):
                found.setdefault(value.record.__module__ + "." + value.record.__qualname__, value)
                assert attribute.isupper(), f"{name}.{attribute}"
    return found


CODECS = codecs()


def test_discovery_finds_the_messages() -> None:
    assert "smbdirect.core.messages.DataTransfer" in CODECS
    assert CODECS["smbdirect.core.messages.NegotiateRequest"].size == 20
    assert CODECS["smbdirect.core.messages.NegotiateResponse"].size == 32
    assert CODECS["smbdirect.core.messages.DataTransfer"].size == 20
    assert CODECS["smbdirect.core.messages.BufferDescriptor"].size == 16


@pytest.mark.parametrize("name", sorted(CODECS))
def test_codec_agrees_with_its_layout(name: str) -> None:
    codec = CODECS[name]
    assert codec.layout.sizeof() == codec.size

    @settings(max_examples=20, deadline=None, database=None)
    @given(st.binary(min_size=codec.size, max_size=codec.size), st.integers(0, 9))
    def agree(data: bytes, offset: int) -> None:
        record = codec.unpack(memoryview(bytes(offset) + data), offset)
        parsed = codec.layout.parse(data)
        assert {field: parsed[field] for field in record._fields} == record._asdict()
        assert codec.pack(record) == data == codec.layout.build(record._asdict())
        buffer = bytearray(offset + codec.size)
        codec.pack_into(buffer, offset, record)
        assert bytes(buffer[offset:]) == data

    agree()


@pytest.mark.parametrize("name", sorted(CODECS))
def test_short_input_is_a_decode_error(name: str) -> None:
    codec = CODECS[name]
    for length in {0, codec.size // 2, codec.size - 1}:
        with pytest.raises(DecodeError):
            codec.unpack(bytes(length))
    with pytest.raises(DecodeError):
        codec.unpack(bytes(codec.size), 1)

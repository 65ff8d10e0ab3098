"""Names and wildcard expressions from clients. [MS-FSCC 2.1.5, MS-FSA 2.1.4.4]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.backends import names
from smb3server.backends.names import InvalidName
from smb3server.backends.snapshot_names import token
from smb3server.commands.create.previous import asked_for
from smb3server.files.searches import compile_expression
from smb3server.wire.fields import decode_name, encode_name
from smb3server.wire.status import StatusError
from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, Wrong, choice, each_choice


def _path(data: memoryview) -> None:
    text = decode_name(data)
    plain = names.split_plain(text)
    path, stream, _ = names.split_path(text)
    if plain is not None and (plain != path or stream):
        raise Wrong(f"{text!r} is {plain} or {path} with {stream!r}")
    for disk, part in zip(names.to_disk_path(path), path, strict=True):
        if "/" in disk or disk in ("", ".", "..") or "\0" in disk:
            raise Wrong(f"{part!r} is {disk!r} on the disk")
        if names.fold(disk) != names.fold(names.to_disk(part)):
            raise Wrong(f"{part!r} folds in two ways")
        names.short_name(part)


def _wildcards(data: memoryview) -> None:
    pattern, _, name = decode_name(data).partition("/")
    compile_expression(pattern)(name)


def _snapshot(data: memoryview) -> None:
    text = decode_name(data)
    seconds, rest = asked_for(text, 0)
    if seconds and f"{token(seconds)}\\{rest}" not in (text, f"{text}\\"):
        raise Wrong(f"{text!r} is {rest!r} in the snapshot of {token(seconds)}")
    if not seconds and rest != text:
        raise Wrong(f"{text!r} is {rest!r}")


SUBJECTS = (_path, _wildcards, _snapshot)


def _seeds() -> Iterator[bytes]:
    texts = (
        "a\\b c\\d.txt",
        "x:stream:$DATA",
        "ä\\😀",
        "\ud800",
        "*.t?t/a.txt",
        '<.<"*/a.b.c',
        ">>>>*<a/aaaaaab",
        "*a*a*a*b/aaaa",
        "@GMT-2024.02.29-23.59.59\\a",
        "@GMT-2024.02.30-00.00.00",
    )
    yield from each_choice(SUBJECTS, map(encode_name, texts))


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError, InvalidName, StatusError))

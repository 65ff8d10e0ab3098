"""8.3 names and wildcards: rows S1 to S4 of docs/caching.md."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from smb3server.backends.names import short_name
from smb3server.wire.create import CreateOptions
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import FileId, Ground, Peer, act

DIRECTORY = int(CreateOptions.DIRECTORY_FILE)
LONG, OTHER, PLAIN = "verylongfilename.html", "another long one.text", "PLAIN.TXT"
SHORT = short_name(LONG)
BOTH = 3
"""FileBothDirectoryInformation."""


async def search(peer: Peer, folder: FileId, pattern: str) -> dict[str, str]:
    """The names found, each with its short name. Empty if nothing is."""
    name = pattern.encode("utf-16-le")
    body = struct.pack("<HBBIQQHHI", 33, BOTH, 0x10, 0, *folder, 96, len(name), 65536) + name
    reply = await peer.call(Command.QUERY_DIRECTORY, body)
    if reply.status == NtStatus.NO_SUCH_FILE:
        return {}
    assert reply.status == 0
    found, data = {}, reply.body[8:]
    while True:
        step, length, short = (
            struct.unpack_from(form, data, at)[0] for form, at in (("<I", 0), ("<I", 60), ("<B", 68))
        )
        found[data[94 : 94 + length].decode("utf-16-le")] = data[70 : 70 + short].decode("utf-16-le")
        if not step:
            return found
        data = data[step:]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (SHORT, {LONG}),
        (SHORT.lower(), {LONG}),
        (SHORT[:-1] + "?", {LONG}),
        (SHORT.split(".", maxsplit=1)[0] + ".*", {LONG}),
        ("*~1*", {LONG, OTHER}),
        ("*.htm", {LONG}),
        ('<~1"htm', {LONG}),
        ("*.tex", {OTHER}),
        ("very*", {LONG}),
        (LONG.upper(), {LONG}),
        ("*.txt", {PLAIN}),
        ("V00000~1.HTM", set()),
        ("*~2.*", set()),
        ("_*~1", set()),
        ("*", {".", "..", LONG, OTHER, PLAIN}),
    ],
)
def test_s1_s2_s3_a_search_matches_the_long_or_the_short_name(tmp_path: Path, pattern: str, found: set[str]) -> None:
    async def scene(ground: Ground) -> None:
        for name in (LONG, OTHER, PLAIN):
            (ground.folder / name).write_text("")
        client = await ground.peer()
        folder = (await client.make("", create_options=DIRECTORY, desired_access=0x81)).file
        entries = await search(client, folder, pattern)
        assert set(entries) == found
        if LONG in entries:
            assert entries[LONG] == SHORT

    act(tmp_path, scene)


def test_s4_a_path_may_use_the_short_name_of_each_component(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        (ground.folder / "a long folder").mkdir()
        (ground.folder / "a long folder" / LONG).write_text("data")
        client = await ground.peer()
        made = await client.make(f"{short_name('a long folder')}\\{SHORT}", create_disposition=1)
        assert made.answer.end_of_file == 4

    act(tmp_path, scene)

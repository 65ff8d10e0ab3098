"""Extended attributes that whoever opens the file must know, and holes of files that are not sparse any more."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from smb3server.wire import attributes as attr
from smb3server.wire.create import CreateOptions
from smb3server.wire.file_info import NEED_EA, EaEntry, FileInfoClass, decode_eas, encode_eas
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.query_info import parse_output_response
from smb3server.wire.status import NtStatus
from tests.lab.rule_scene import ALL, Ground, act
from tests.lab.wire_client import Reply

READ, OPEN = 0x120089, 1


def output(reply: Reply) -> bytes:
    return bytes(parse_output_response(memoryview(reply.message)))


@pytest.mark.parametrize(("flags", "status"), [(0, 0), (NEED_EA, NtStatus.ACCESS_DENIED)])
def test_needed_eas_must_be_known(tmp_path: Path, flags: int, status: int) -> None:
    """MS-FSA 2.1.5.1.2, 2.1.5.15.6, MS-FSCC 2.4.16."""

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        eas = [EaEntry(b"ONE", b"1"), EaEntry(b"TWO", b"2", flags)]
        assert await peer.set_info(file, FileInfoClass.FULL_EA, b"".join(encode_eas(eas))) == 0
        assert decode_eas(output(await peer.query_info(file, FileInfoClass.FULL_EA))) == eas
        assert await peer.close(file) == 0
        knows = await peer.make("f", desired_access=ALL, create_disposition=OPEN)
        without = int(CreateOptions.NO_EA_KNOWLEDGE)
        found = await peer.create("f", desired_access=READ, create_disposition=OPEN, create_options=without)
        assert found.status == status
        # An EA that is set again has the flags that come with it.
        again = b"".join(encode_eas([EaEntry(b"two", b"3")]))
        assert await peer.set_info(knows.file, FileInfoClass.FULL_EA, again) == 0
        found = await peer.create("f", desired_access=READ, create_disposition=OPEN, create_options=without)
        assert found.status == 0

    act(tmp_path, scene)


def test_a_file_that_is_not_sparse_any_more_has_no_holes(tmp_path: Path) -> None:
    """MS-FSA 2.1.5.10.36."""
    size = 3 << 20

    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        file = (await peer.make("f", desired_access=ALL)).file
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE)).status == 0
        assert await peer.write(file, b"end", size) == 0
        path = ground.folder / "f"
        assert os.stat(path).st_blocks * 512 < size
        written = os.stat(path).st_mtime_ns
        assert (await peer.fsctl(file, Fsctl.SET_SPARSE, b"\0")).status == 0
        assert os.stat(path).st_blocks * 512 >= size
        assert os.stat(path).st_mtime_ns == written
        (attributes,) = struct.unpack_from("<I", output(await peer.query_info(file, FileInfoClass.BASIC)), 32)
        assert not attributes & attr.SPARSE

    act(tmp_path, scene)

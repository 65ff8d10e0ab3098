"""Shares whose clients cache what they read only: ``force_level2_oplocks`` (Share.ForceLevel2Oplock). [MS-SMB2 3.3.5.9,
3.3.5.9.8, 3.3.5.9.11]"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from smb3server.state.share import ShareFlags
from smb3server.wire.oplock_break import OplockLevel
from tests.lab.rule_scene import RH, RWH, Ground, R, act, lease


@pytest.mark.parametrize("forced", [True, False])
def test_the_tree_connect_says_so(tmp_path: Path, forced: bool) -> None:
    async def scene(ground: Ground) -> None:
        peer = await ground.peer()
        reply = await peer.client.tree_connect()
        (flags,) = struct.unpack_from("<I", reply.body, 4)
        assert bool(flags & ShareFlags.FORCE_LEVELII_OPLOCK) == forced

    act(tmp_path, scene, force_level2_oplocks=forced)


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (OplockLevel.BATCH, OplockLevel.II),
        (OplockLevel.EXCLUSIVE, OplockLevel.II),
        (OplockLevel.II, OplockLevel.II),
        (OplockLevel.NONE, OplockLevel.NONE),
    ],
)
def test_f22_no_oplock_is_more_than_level_2(tmp_path: Path, asked: OplockLevel, granted: OplockLevel) -> None:
    async def scene(ground: Ground) -> None:
        made = await (await ground.peer()).make("f", requested_oplock_level=int(asked))
        assert made.answer.oplock_level == granted

    act(tmp_path, scene, force_level2_oplocks=True)


@pytest.mark.parametrize(("asked", "granted"), [(RWH, RH), (5, R), (RH, RH), (R, R)])
def test_f22_no_lease_has_write_caching(tmp_path: Path, asked: int, granted: int) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        assert (await holder.make("f", lease(1, asked))).state == granted
        # What nobody caches need not be broken for another one who opens.
        assert (await other.make("f")).status == 0
        assert await holder.told() == []

    act(tmp_path, scene, force_level2_oplocks=True)


def test_f22_level_2_ends_with_a_write(tmp_path: Path) -> None:
    async def scene(ground: Ground) -> None:
        holder, other = await ground.peer(), await ground.peer()
        await holder.make("f", requested_oplock_level=int(OplockLevel.BATCH))
        assert await other.write((await other.make("f")).file) == 0
        await holder.told()
        (notification,) = holder.notifications
        assert struct.unpack_from("<HB", notification.body) == (24, OplockLevel.NONE)

    act(tmp_path, scene, force_level2_oplocks=True)

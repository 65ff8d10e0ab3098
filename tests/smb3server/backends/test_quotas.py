"""The kernel's quotas: the layouts of its headers, and what its answers mean."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from smb3server.backends.base import Quota, User
from smb3server.backends.local import quotas

PROGRAM = """
#include <stddef.h>
#include <stdio.h>
#include <linux/quota.h>
#include <linux/dqblk_xfs.h>
#include <sys/syscall.h>
#define SHOW(what) printf("%s %llu\\n", #what, (unsigned long long)(what))
int main(void) {
  SHOW(sizeof(struct if_dqblk)); SHOW(offsetof(struct if_dqblk, dqb_bhardlimit));
  SHOW(offsetof(struct if_dqblk, dqb_bsoftlimit)); SHOW(offsetof(struct if_dqblk, dqb_curspace));
  SHOW(offsetof(struct if_dqblk, dqb_valid)); SHOW(offsetof(struct if_nextdqblk, dqb_id));
  SHOW(offsetof(struct fs_quota_stat, qs_flags)); SHOW(sizeof(struct fs_quota_stat));
  SHOW(Q_GETQUOTA); SHOW(Q_SETQUOTA); SHOW(Q_GETNEXTQUOTA); SHOW(Q_XGETQSTAT); SHOW(QIF_BLIMITS);
  SHOW(FS_QUOTA_UDQ_ACCT); SHOW(FS_QUOTA_UDQ_ENFD); SHOW(USRQUOTA); SHOW(QIF_DQBLKSIZE); SHOW(SYS_quotactl_fd);
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_layouts_are_those_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "show.c").write_text(PROGRAM)
    made = subprocess.run(
        ["cc", "-o", tmp_path / "show", tmp_path / "show.c"], capture_output=True, text=True, check=False
    )
    if made.returncode and ("quota.h" in made.stderr or "SYS_quotactl_fd" in made.stderr):
        pytest.skip("the kernel's headers are not installed")
    assert not made.returncode, made.stderr
    shown = subprocess.run([tmp_path / "show"], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, _, value in (line.rpartition(" ") for line in shown.splitlines())}
    assert found == {
        "sizeof(struct if_dqblk)": quotas._DQBLK.size,
        "offsetof(struct if_dqblk, dqb_bhardlimit)": 0,
        "offsetof(struct if_dqblk, dqb_bsoftlimit)": 8,
        "offsetof(struct if_dqblk, dqb_curspace)": 16,
        "offsetof(struct if_dqblk, dqb_valid)": 64,
        "offsetof(struct if_nextdqblk, dqb_id)": 68,
        "offsetof(struct fs_quota_stat, qs_flags)": 2,
        "sizeof(struct fs_quota_stat)": found["sizeof(struct fs_quota_stat)"],
        "Q_GETQUOTA": quotas._GET,
        "Q_SETQUOTA": quotas._SET,
        "Q_GETNEXTQUOTA": quotas._GET_NEXT,
        "Q_XGETQSTAT": quotas._GET_STATE,
        "QIF_BLIMITS": quotas._BLOCK_LIMITS,
        "FS_QUOTA_UDQ_ACCT": quotas._ACCOUNTED,
        "FS_QUOTA_UDQ_ENFD": quotas._ENFORCED,
        "USRQUOTA": quotas._USERS,
        "QIF_DQBLKSIZE": quotas._BLOCK,
        "SYS_quotactl_fd": quotas._SYS_QUOTACTL_FD,
    }
    assert found["sizeof(struct fs_quota_stat)"] <= quotas._ROOM


class Kernel:
    """Answers like quotactl_fd(2)."""

    def __init__(self, flags: int = 3, error: int = 0) -> None:
        self.flags = flags
        self.error = error
        self.blocks: dict[int, tuple[int, int, int]] = {}
        """Hard and soft limit in KiB, and bytes in use, by user."""

    def call(self, descriptor: int, command: int, user: int, buffer: bytes = b"") -> bytes:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if command == quotas._GET_STATE:
            return struct.pack("<bxH", 1, self.flags) + bytes(100)
        if command == quotas._SET:
            hard, soft, _, *_, valid, _ = struct.unpack_from("<8QII", buffer)
            assert valid == 1
            self.blocks[user] = (hard, soft, self.blocks.get(user, (0, 0, 0))[2])
            return bytes(100)
        if command == quotas._GET_NEXT:
            user = next((found for found in sorted(self.blocks) if found >= user), -1)
        if user not in self.blocks:
            raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
        hard, soft, used = self.blocks[user]
        return struct.pack("<8QII", hard, soft, used, 0, 0, 0, 0, 0, 63, user)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(quotas, "quotactl_fd", made.call)
    return made


def test_limits_are_in_bytes_here_and_in_blocks_there(kernel: Kernel) -> None:
    found = quotas.find(0)
    assert found is not None
    found.set(7, 1, 1025)
    assert kernel.blocks[7] == (2, 1, 0)
    kernel.blocks[7] = (2, 1, 555)
    assert found.get(7) == Quota(7, 555, 1024, 2048)
    found.set(7, 0, 0)
    assert found.get(7) == Quota(7, 555, 0, 0)
    assert found.get(8) == Quota(8, 0, 0, 0)


def test_a_listing_leaves_out_empty_entries(kernel: Kernel) -> None:
    kernel.blocks = {3: (0, 0, 0), 5: (0, 0, 1), 6: (0, 0, 0), 0xFFFFFFFE: (9, 0, 0)}
    found = quotas.find(0)
    assert found is not None
    assert found.following(0) == Quota(5, 1, 0, 0)
    assert found.following(6) == Quota(0xFFFFFFFE, 0, 0, 9216)
    assert found.following(0xFFFFFFFF) is None


def test_whose_quota_holds(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    found = quotas.find(0)
    assert found is not None
    kernel.blocks = {7: (2, 1, 0), 8: (4, 0, 0)}
    monkeypatch.setattr(os, "geteuid", lambda: 8)
    monkeypatch.setattr(quotas, "may_act", lambda: True)
    assert found.of_user(User(7, 7)) == Quota(7, 0, 1024, 2048)
    assert found.of_user(None) == Quota(8, 0, 0, 4096)
    assert found.of_user(User(0, 0)) is None
    monkeypatch.setattr(quotas, "may_act", lambda: False)
    assert found.of_user(User(7, 7)) == Quota(8, 0, 0, 4096), "all users are the server's own"
    kernel.flags = quotas._ACCOUNTED
    counted = quotas.find(0)
    assert counted is not None
    assert counted.of_user(None) is None


def test_without_the_right_to_ask_for_others(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    found = quotas.find(0)
    assert found is not None
    monkeypatch.setattr(quotas, "may_act", lambda: True)
    kernel.error = errno.EPERM
    assert found.of_user(User(7, 7)) is None
    with pytest.raises(PermissionError):
        found.get(7)
    assert quotas.find(0) is None


@pytest.mark.parametrize("error", [errno.ESRCH, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_quotas(kernel: Kernel, error: int) -> None:
    kernel.error = error
    assert quotas.find(0) is None
    kernel.error, kernel.flags = 0, 0
    assert quotas.find(0) is None


def test_the_real_call_gives_its_error() -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
        quotas.quotactl_fd(-1, quotas._GET_STATE, 0)
    assert caught.value.errno == errno.EBADF

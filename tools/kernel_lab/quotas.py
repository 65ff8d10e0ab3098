"""Runs the tests of the kernel's quotas in the lab's guest, with the server, smbcquotas and smbclient.

    python -m tools.kernel_lab.quotas

Kernels of test machines often lack quotas (CONFIG_QFMT_V2, CONFIG_XFS_QUOTA), and these tests are skipped there. The
guest sees this machine's files, read-only. docs/kernel-lab.md says how the lab is made.
"""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from smb3server.process import output
from tools.kernel_lab.__main__ import HERE, lab_folder

ROOT = HERE.parents[1]
MODULES = (
    "crypto/crc32c_generic", "lib/libcrc32c", "lib/crc16", "fs/mbcache", "fs/jbd2/jbd2", "fs/quota/quota_tree",
    "fs/quota/quota_v2", "fs/ext4/ext4", "fs/xfs/xfs", "drivers/block/loop",
)  # fmt: skip
"""What the guest's initramfs lacks, in the order of their loading."""
_SECONDS = 500


def main() -> int:
    """Return the exit status: 0 passed, 1 failed or skipped, 2 there is no lab."""
    kernels = sorted((lab_folder() / "root/lib/modules").glob("*/kernel"))
    if not kernels:
        print(f"no lab in {lab_folder()}: see docs/kernel-lab.md", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="quotas-") as folder:
        (Path(folder) / "modules").mkdir()
        for module in MODULES:
            packed = kernels[-1] / f"{module}.ko.xz"
            (Path(folder) / "modules" / f"{packed.name.removesuffix('.xz')}").write_bytes(
                lzma.decompress(packed.read_bytes())
            )
        command = [str(HERE / "run.sh"), str(HERE / "guest" / "quotas.sh"), str(ROOT)]
        environment = os.environ | {"OUT": folder, "HOSTROOT": "1", "TIMEOUT": str(_SECONDS), "LAB": str(lab_folder())}
        return min(subprocess.run(command, env=environment, check=False).returncode, 1)


if __name__ == "__main__":
    sys.exit(output.run(main))

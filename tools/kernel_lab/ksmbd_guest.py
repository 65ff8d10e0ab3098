"""A guest in which ksmbd serves a share, for clients on the host's side of a tap or in another guest."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.kernel_lab.server import ServerError

HERE = Path(__file__).resolve().parent
BOOT_SECONDS = 240
STOP_SECONDS = 30
USER, PASSWORD, SHARE = "u", "pw", "share"
"""As guest/lib.sh makes them."""


@contextlib.contextmanager
def guest(
    prefix: Sequence[str], script: str, out: Path, tap: str, arguments: Sequence[str]
) -> Iterator[subprocess.Popen[str]]:
    """Boot a guest that runs ``script`` and then ends. ``arguments`` are those of the script."""
    out.mkdir()
    environment = os.environ | {"OUT": str(out), "NET": f"tap:{tap}", "TIMEOUT": "1200", "MEM": "1024", "SMP": "1"}
    process = subprocess.Popen(
        [*prefix, str(HERE / "run.sh"), str(HERE / "guest" / script), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def serving(
    prefix: Sequence[str], out: Path, tap: str, address: str, protocol: str, mtu: int, file_mib: int
) -> Iterator[None]:
    """While the block runs, ksmbd serves its share at ``address`` over TCP and siw or rxe.

    ``out/kernel`` has the guest's kernel version then. Raises ``ServerError`` if it does not come to serve.
    """
    settings = f"FILE_MIB={file_mib} CASE_TIMEOUT=1100 WORKOUT=bench-ksmbd.sh"
    case = f"ksmbd:{protocol}:255:{mtu}::"
    with guest(prefix, "cases.sh", out, tap, [settings, address, case]) as process:
        # The console is not read meanwhile; run.sh keeps it in a file.
        deadline = time.monotonic() + BOOT_SECONDS
        while not (out / "serving").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"ksmbd's guest does not serve; its console is {out / 'console.log'}")
            time.sleep(0.5)
        yield
        (out / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):  # It is ended in any case; this lets it end by itself.
            process.wait(STOP_SECONDS)

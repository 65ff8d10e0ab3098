"""smbtorture's rpc.witness: its AsyncNotify test makes events through the cluster's interface, its RegisterEx test asks
an SMB server for the shares."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.clusapi import Resource
from tests.lab.witness import NET_NAME, PASSWORD, USER, Running, settings
from tools.support import own_user
from witness.registrations import Limits

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("smbtorture") is None, reason="smbtorture is not installed"),
]

TESTS = ("GetInterfaceList", "Register", "UnRegister", "RegisterEx", "AsyncNotify", "AsyncNotify_timeouts")


@pytest.fixture(scope="module")
def smb_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    share = tmp_path_factory.mktemp("data")
    command = [
        sys.executable,
        "-m",
        "smb3server",
        "--share",
        own_user.option("data", share),
        "--user",
        f"{USER}:{PASSWORD}",
    ]
    command += ["--listen", "127.0.0.1", "--port", "0"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root) as server:
        try:
            if server.stdout is None:
                raise AssertionError("no output")
            for line in server.stdout:
                if found := re.search(r"^ready tcp 127\.0\.0\.1:(\d+)", line):
                    yield int(found[1])
                    break
        finally:
            server.terminate()
            server.wait(20)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Running]:
    servers: list[Running] = []
    resource = Resource(lambda available: servers[0].cluster.resource_changed(NET_NAME, available))
    # The timeouts test waits up to 120 s, five times: a server may answer earlier.
    limits = Limits(default_keepalive=0.2, max_keepalive=0.2)
    servers.append(Running(settings(limits=limits), lambda association: [resource.interface()]))
    yield servers[0]
    servers[0].stop()


@pytest.mark.parametrize("protection", ["sign", "seal"])
@pytest.mark.parametrize("test", TESTS)
def test_smbtorture(cluster: Running, smb_port: int, test: str, protection: str, tmp_path: Path) -> None:
    command = ["smbtorture", f"ncacn_ip_tcp:127.0.0.1[{cluster.service.port},{protection}]", "-U", f"{USER}%{PASSWORD}"]
    command += [f"--option=torture:net_name={NET_NAME}", f"--option=smbports={smb_port}"]
    command += [f"--basedir={tmp_path}", f"rpc.witness.witness.{test}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if test == "RegisterEx":
        # It takes any share for one of the type STYPE_CLUSTER_SOFS, and wants unknown share names refused. Where there
        # is none of that type, the server MUST ignore the share's name (MS-SWN 3.1.4.5), and Microsoft's suite wants it
        # so.
        assert "assuming SOFS share: data" in done.stderr
        assert "r.out.result was WERR_OK, expected WERR_INVALID_STATE: RegisterEx failed" in done.stdout
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"success: witness.{test}" in done.stdout, done.stdout

"""The container file builds, on a base that comes from Debian's packages, and its server serves and is healthy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.debian import ROOT, clean_debian, run
from tools.support.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
    pytest.mark.skipif(shutil.which("buildah") is None, reason="needs buildah"),
]

IMAGE, BASE_IMAGE = "localhost/smb3server", "localhost/debian"
PATIENCE = 60.0


def of_this_machine() -> list[str]:
    """Return what says where packages come from on this machine, and the folders there that pip takes them from."""
    configured = run(sys.executable, "-m", "pip", "config", "list")
    folders = [path for path in re.findall(r"='(/[\w./-]+)", configured) if Path(path).is_dir()]
    # An index has its files beside its pages.
    folders += [str(Path(path).parent) for path in re.findall(r"file://(/[\w./-]+)", configured)]
    files = ["/etc/pip.conf", "/etc/xdg/pip", "/root/.config/pip", "/etc/ssl/certs/ca-certificates.crt"]
    found = [*files, *folders, *map(str, Path("/etc/apt/apt.conf.d").glob("*"))]
    return [path for path in found if Path(path).exists()]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The program, with a store of its own that has the image."""
    place = tmp_path_factory.mktemp("containers")
    tool = ["buildah", "--root", f"{place}/root", "--runroot", f"{place}/run", "--storage-driver", "vfs"]
    empty = run(*tool, "from", "scratch").strip()
    mounted = run(*tool, "mount", empty).strip()
    run("cp", "-a", f"{clean_debian()}/.", mounted)
    run(*tool, "umount", empty)
    run(*tool, "commit", "-q", "--rm", empty, BASE_IMAGE)
    volumes = [word for path in of_this_machine() for word in ("-v", f"{path}:{path}:ro")]
    options = ["--isolation", "chroot", "--network", "host", "--format", "docker", *volumes]
    run(*tool, "build", *options, "--build-arg", f"BASE={BASE_IMAGE}", "-f", "dist/Containerfile", "-t", IMAGE, ".")
    yield tool
    run(*tool, "rm", "-a")
    run("rm", "-rf", place)


def test_the_image_says_how_it_is_run(buildah: list[str]) -> None:
    about = json.loads(run(*buildah, "inspect", "--type", "image", IMAGE))["Docker"]["config"]
    assert about["User"] == "smb3server"
    assert set(about["ExposedPorts"]) == {"445/tcp", "5445/tcp", "4791/udp"}
    assert set(about["Volumes"]) == {"/var/lib/smb3server", "/srv/data"}
    assert about["Entrypoint"] == ["smb3server"]
    assert "smb3server status" in about["Healthcheck"]["Test"][1]


def test_a_container_serves_and_is_healthy(buildah: list[str]) -> None:
    """As its user, without capabilities."""
    container = run(*buildah, "from", IMAGE).strip()
    inside = [*buildah, "run", "--isolation", "chroot", container, "--"]
    assert run(*inside, "id", "-u").strip() == "990"
    health = json.loads(run(*buildah, "inspect", "--type", "image", IMAGE))["Docker"]["config"]["Healthcheck"]["Test"][
        1
    ]
    port = free_port()
    options = ["--share", "data=/srv/data", "--guest", "--listen", "127.0.0.1", "--port", str(port), "--rdma=off"]
    server = [*inside, "smb3server", "serve", *options, "--state", "/var/lib/smb3server"]
    with subprocess.Popen(server, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            deadline = time.monotonic() + PATIENCE
            while not process.stdout.readline().startswith("ready tcp"):
                assert process.poll() is None and time.monotonic() < deadline
            run(*inside, "sh", "-c", health)
            run("smbclient", "//127.0.0.1/data", "-N", "-p", str(port), "-c", f"put {ROOT}/LICENSE licence; ls")
            assert run(*inside, "stat", "-c", "%u", "/srv/data/licence").strip() == "990"
        finally:
            process.terminate()
            process.wait(PATIENCE)
    broken = subprocess.run([*inside, "sh", "-c", health], capture_output=True, check=False)
    assert broken.returncode != 0

"""The shared file system is missing on a node, is read-only, or hangs: another node serves, and no handle is lost."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from smb3server.client.protocol.transports import open_tcp
from smb3server.cluster.cluster import STARTUP_GRACE
from tests.lab.nodes import PASSWORD, USER
from tests.lab.persistent import PersistentFile, PersistentShare
from tools.cluster import lab
from tools.cluster.lab import CLIENT, PORT, SERVICE, SHARE, VIRTUAL, ClusterLab

pytestmark = pytest.mark.root

LIMIT = 2
"""Seconds after which storage counts as hanging."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterLab]:
    if reason := lab.why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("storage")
    folder.chmod(0o755)
    made = ClusterLab(
        folder, cluster_options=f"storage_timeout = {LIMIT}", program=("-m", "tests.lab.pausing", str(folder))
    )
    with made:
        made.wait_for_service(SERVICE, "a")
        time.sleep(STARTUP_GRACE + 1)
        yield made


@pytest.fixture
def cluster(shared: ClusterLab) -> ClusterLab:
    shared.gather("a", [SERVICE])
    return shared


def inside(cluster: ClusterLab, node: str, *command: str) -> None:
    """Run a command in the mount namespace of a node."""
    process = cluster.nodes[node].process
    assert process is not None
    subprocess.run(["nsenter", "-t", str(process.pid), "-m", *command], check=True, capture_output=True)


def hide(cluster: ClusterLab, node: str) -> None:
    inside(cluster, node, "mount", "-t", "tmpfs", "none", str(cluster.share))


def make_read_only(cluster: ClusterLab, node: str) -> None:
    inside(cluster, node, "mount", "--bind", str(cluster.share), str(cluster.share))
    inside(cluster, node, "mount", "-o", "remount,ro,bind", str(cluster.share))


def hang(cluster: ClusterLab, node: str) -> None:
    (cluster.folder / f"hang-{node}").touch()


def unmount(cluster: ClusterLab, node: str) -> None:
    inside(cluster, node, "umount", "-l", str(cluster.share))


def unhang(cluster: ClusterLab, node: str) -> None:
    (cluster.folder / f"hang-{node}").unlink()


FAULTS: dict[str, tuple[Callable[[ClusterLab, str], None], Callable[[ClusterLab, str], None], str]] = {
    "another file system": (hide, unmount, "has no storage mark"),
    "read-only": (make_read_only, unmount, "Read-only file system"),
    "hangs": (hang, unhang, "has not answered"),
}
"""What happens, how it is undone, and what is said of it."""


class Client:
    def __init__(self) -> None:
        self.share = PersistentShare(lambda: open_tcp(VIRTUAL, PORT, 1.0), SHARE, USER, PASSWORD, 40.0)

    async def open(self, name: str) -> PersistentFile:
        """An exclusive open with data and a lock."""
        file = await self.share.open(name, share=0)
        await file.write(0, b"acknowledged")
        await file.lock(0, 5)
        return file


async def check(file: PersistentFile, cluster: ClusterLab, name: str) -> None:
    """The handle is kept, with its lock, and works on the right file system."""
    assert await file.read(0, 12) == b"acknowledged"
    await file.unlock(0, 5)
    await file.write(12, b" and more")
    assert (cluster.share / name).read_bytes() == b"acknowledged and more"
    await file.close()


def in_client(cluster: ClusterLab, body: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        client = Client()
        await body(client)
        await client.share.close()

    cluster.network.inside(CLIENT, run)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.long] if fault != next(iter(FAULTS)) else []) for fault in FAULTS]
)
def test_the_service_leaves_a_node_whose_storage_fails(cluster: ClusterLab, fault: str) -> None:
    strike, undo, said = FAULTS[fault]
    name = fault.replace(" ", "-")

    async def body(client: Client) -> None:
        file = await client.open(name)
        strike(cluster, "a")
        try:
            cluster.wait_for_service(SERVICE, "b")
            status = cluster.admin("status")
            assert "a: storage missing, so it cannot have one" in status and said in status
            await check(file, cluster, name)
        finally:
            undo(cluster, "a")
        cluster.wait_until(lambda: "storage missing" not in cluster.admin("status"), "storage there again")
        cluster.admin("move", SERVICE, "a")

    in_client(cluster, body)


def test_a_node_without_the_storage_does_not_take_over(cluster: ClusterLab) -> None:
    async def body(client: Client) -> None:
        file = await client.open("kept")
        hide(cluster, "b")
        cluster.wait_until(lambda: "b: storage missing" in cluster.admin("status"), "storage of b missing")
        cluster.nodes["a"].kill()
        cluster.wait_until(lambda: cluster.up() == {"b"}, "a gone")
        time.sleep(3)
        assert cluster.served()[SERVICE] is None
        unmount(cluster, "b")
        cluster.wait_for_service(SERVICE, "b")
        await check(file, cluster, "kept")

    in_client(cluster, body)


def test_clients_neither_see_nor_change_the_mark(cluster: ClusterLab) -> None:
    mark = cluster.share / ".smb3server" / "storage-mark"
    before = mark.read_text()
    done = subprocess.run(
        [
            *cluster.network.prefix(CLIENT), "smbclient", f"//{VIRTUAL}/{SHARE}", "-U", f"{USER}%{PASSWORD}", "-c",
            "ls; ls .smb3server/*; get .smb3server/storage-mark -; del .smb3server/storage-mark; "
            "deltree .smb3server; rename .smb3server gone",
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert before.strip() not in done.stdout and "storage-mark" not in done.stdout.replace("\\storage-mark", "")
    assert mark.read_text() == before


@pytest.mark.long
def test_a_file_system_that_stops_for_everybody(tmp_path: Path) -> None:
    """fsfreeze(8) of a real file system: nobody serves until it goes on, and then all handles are there."""
    if reason := lab.why_not():
        pytest.skip(reason)
    tmp_path.chmod(0o755)
    image, place = tmp_path / "image", tmp_path / "share"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        place.chmod(0o777)
        with ClusterLab(tmp_path, cluster_options=f"storage_timeout = {LIMIT}") as cluster:
            cluster.wait_for_service(SERVICE, "a")

            async def body(client: Client) -> None:
                held = await client.open("frozen")
                subprocess.run(["fsfreeze", "-f", str(place)], check=True)
                try:
                    cluster.wait_until(lambda: cluster.served().get(SERVICE) is None, "served by nobody")
                    assert "has not answered" in cluster.admin("status")
                finally:
                    subprocess.run(["fsfreeze", "-u", str(place)], check=True)
                cluster.wait_until(lambda: cluster.served().get(SERVICE) is not None, "served again")
                await check(held, cluster, "frozen")

            in_client(cluster, body)
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_device_that_moves(tmp_path: Path, kind: str) -> None:
    """A file system that one node at a time may mount: the service waits until the next node has mounted it."""
    if reason := lab.why_not():
        pytest.skip(reason)
    tmp_path.chmod(0o755)
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(400 << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True)
    found = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True)
    device = found.stdout.strip()
    try:
        cluster = ClusterLab(tmp_path)
        mount = f"mount {device} {cluster.share} && chmod 777 {cluster.share}"
        cluster.nodes["a"].prefix += ["sh", "-c", f'{mount} && exec "$@"', "sh"]
        with cluster:
            cluster.wait_for_service(SERVICE, "a")
            cluster.wait_until(lambda: "b: storage missing" in cluster.admin("status"), "storage of b missing")

            async def body(client: Client) -> None:
                held = await client.open("moves")
                # Its mount namespace, and so its mount, ends with it.
                cluster.nodes["a"].kill()
                cluster.wait_until(lambda: cluster.up() == {"b"}, "a gone")
                inside(cluster, "b", "mount", device, str(cluster.share))
                cluster.wait_for_service(SERVICE, "b")
                assert await held.read(0, 12) == b"acknowledged"
                await held.unlock(0, 5)
                await held.close()

            in_client(cluster, body)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)

"""The programs of examples/, as their first lines say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.config.sources.host_users import ALLOW_ROOT_VARIABLE
from tests.lab.remote import PASSWORD, Home, home
from tools.support.ports import free_port

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "SMB3SERVER_PASSWORD": PASSWORD, ALLOW_ROOT_VARIABLE: "1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home(tmp_path_factory.mktemp("examples")) as found:
        yield found


def run(name: str, *words: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_read_by_rdma(served: Home) -> None:
    (served.folder / "big.bin").write_bytes(bytes(3 << 20))
    assert "3145728 bytes in" in run("read_by_rdma.py", f"{served.url}/big.bin")


def test_backup(served: Home, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"1" * 100)
    assert "d/a: 100 bytes" in run("backup.py", str(tmp_path), served.url)
    assert run("backup.py", str(tmp_path), served.url) == ""
    assert (served.folder / "d" / "a").read_bytes() == b"1" * 100
    # What is missing is named: the folder here, or there.
    for source, target, said in (
        (tmp_path / "nowhere", served.url, "nowhere is not a folder of this machine"),
        (tmp_path, f"{served.url}/new", f"{served.url}/new: the share has no such folder"),
    ):
        command = [sys.executable, str(ROOT / "examples" / "backup.py"), str(source), target]
        found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
        assert found.returncode == 1 and said in found.stderr


def test_table_by_url(served: Home) -> None:
    (served.folder / "t.csv").write_text("name,size\na,1.5\nb,2\n")
    # A checkout has no installed entry points: the file system is registered by hand.
    register = "import fsspec; from smb3server.client.filesystem import SmbDirectFileSystem as F;"
    program = f"{register} fsspec.register_implementation('smbd', F, clobber=True); import runpy; "
    program += f"runpy.run_path({str(ROOT / 'examples' / 'table_by_url.py')!r}, run_name='__main__')"
    url = served.url.replace("smb:", "smbd:") + "/t.csv"
    command = [sys.executable, "-c", program, url, "size"]
    found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=True)
    assert found.stdout == "3.5\n"


def test_serve_a_folder(tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("hello")
    port = free_port()
    command = [sys.executable, str(ROOT / "examples" / "serve_a_folder.py"), str(tmp_path), str(port), "alice:pw"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("serving at tcp 127.0.0.1")
            words = [sys.executable, "-m", "smb3server", "client", "ls", f"smb://alice@127.0.0.1:{port}/data"]
            found = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
            assert found.stdout == "hello\n", found.stderr
        finally:
            process.terminate()


def test_rdma_two_processes() -> None:
    port = str(free_port())
    program = [sys.executable, str(ROOT / "examples" / "rdma_two_processes.py")]
    with subprocess.Popen(
        [*program, "server", "127.0.0.1", port], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and "listening" in process.stdout.readline()
            assert run("rdma_two_processes.py", "client", "127.0.0.1", port) == "client: b'done' b'hello by RDMA'\n"
            assert process.stdout.readline() == "server: read back b'hello by RDMA' \n"
            assert process.wait(30) == 0
        finally:
            process.terminate()


def test_the_page_has_the_program() -> None:
    program = (ROOT / "examples" / "rdma_two_processes.py").read_text().split("annotations\n\n")[1]
    assert program in (ROOT / "docs" / "api-smbdirect.md").read_text()


def test_rdma_in_thirty_lines() -> None:
    assert run("rdma_in_thirty_lines.py") == (
        "the client read: what the server has\nthe server has: what the client has.....................\n"
    )
    page = (ROOT / "docs" / "rdma-api.md").read_text()
    assert (ROOT / "examples" / "rdma_in_thirty_lines.py").read_text().split('"""\n\n', 1)[1] in page


def test_serve_memory() -> None:
    port = free_port()
    command = [sys.executable, str(ROOT / "examples" / "serve_memory.py"), str(port), f"u:{PASSWORD}"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("serving at tcp 127.0.0.1")
            smbclient = ["smbclient", "//127.0.0.1/memory", "-p", str(port), "-U", f"u%{PASSWORD}"]
            done = subprocess.run(
                [*smbclient, "-c", f"put {__file__} copy; allinfo copy"],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0 and "create_time" in done.stdout, done.stdout + done.stderr
        finally:
            process.terminate()


def test_with_a_share() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir",
               str(ROOT / "examples"), str(ROOT / "examples" / "test_with_a_share.py")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr

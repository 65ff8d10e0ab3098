"""The source distribution and the wheel: complete, with modules in C where there is a compiler, and working without."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smb3server import __version__
from smb3server.cli.itself.completion import SHELLS
from smb3server.cli.itself.manual import pages
from smb3server.client.protocol import Client, open_tcp
from smb3server.wire.create import CreateDisposition, CreateOptions
from smbdirect import native

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PACKAGES = ("smbdirect", "smb3server", "witness")
SOURCES = {f"{name.replace('.', '/')}.c" for name in native.MODULES}
NAMES = {f"file {number:03}" for number in range(300)}


def files_of_the_packages() -> set[str]:
    """What lies in the packages and is to be installed."""
    kept = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(kept.splitlines()) - SOURCES


def run(*command: str | Path, **environment: str) -> str:
    """Return what a program prints. It knows nothing of this checkout."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", native.SWITCH)}
    ended = subprocess.run(
        [str(word) for word in command],
        env=own | environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made of what git keeps."""
    folder = tmp_path_factory.mktemp("source")
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in kept.decode().split("\0"):
        if (ROOT / name).is_file() and not name.startswith("pcaps/"):
            copy = folder / "tree" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
    code = f"import os; os.chdir({str(folder / 'tree')!r}); from setuptools import build_meta as b; b.build_sdist('..')"
    run(sys.executable, "-c", code)
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module", params=["compiler", "no compiler", "broken compiler"])
def built(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """The wheel, and whether modules in C can be in it."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = {"no compiler": {"PATH": str(folder)}, "broken compiler": {"CC": "false"}}.get(request.param, {})
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source, **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel, request.param == "compiler"


@pytest.fixture(scope="module")
def installed(built: tuple[Path, bool], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """The program ``smb3server`` of a new environment, and whether it has modules in C."""
    wheel, with_c = built
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", "--no-deps", wheel)
    # What the project needs is there already: the environment's own packages come first.
    where = run(python, "-c", "import site; print(site.getsitepackages()[0])").strip()
    Path(where, "needed.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "smb3server", with_c


def test_the_source_distribution_is_complete(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= files_of_the_packages() | SOURCES | {"setup.py", "pyproject.toml", "README.md"}


def test_the_wheel_has_every_file_of_the_packages(built: tuple[Path, bool]) -> None:
    wheel, with_c = built
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not re.match(r"smb3server-[^/]*\.(dist-info|data)/", name)}
    compiled = {name for name in names if name.endswith(".so")}
    assert names - compiled == files_of_the_packages()
    assert {name.partition(".")[0] + ".c" for name in compiled} == (SOURCES if with_c else set())
    # One build serves all versions of Python.
    assert not compiled or all(name.endswith(".abi3.so") for name in compiled)
    assert "-cp311-abi3-" in wheel.name


def test_the_wheel_has_manual_pages_completion_and_the_licence(built: tuple[Path, bool]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.namelist()}
        (about,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    assert {f"data/share/man/man1/{page}" for page in pages()} <= names
    assert {f"data/{place}" for place in SHELLS.values()} <= names
    assert any(name.endswith("LICENSE") for name in names)
    assert "Author: the smb3server developers" in about and "License: Apache-2.0" in about
    assert f"\nVersion: {__version__}\n" in about


@pytest.mark.skipif(shutil.which("pipx") is None, reason="needs pipx")
def test_pipx_puts_one_program_on_the_path(built: tuple[Path, bool], tmp_path: Path) -> None:
    """Packages that the server needs bring programs of their own, which stay in its environment."""
    places = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run("pipx", "install", "--python", "/usr/bin/python3", built[0], **places)
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["smb3server"]
    assert run(tmp_path / "bin" / "smb3server", "--version").startswith(f"smb3server {__version__} ")
    assert (tmp_path / "home/venvs/smb3server/share/man/man1/smb3server.1").is_file()


def test_the_version_says_what_is_in_use(installed: tuple[Path, bool]) -> None:
    program, with_c = installed
    for environment, state in (
        ({}, "in use" if with_c else "not built"),
        ({native.SWITCH: "0"}, "SMB3SERVER_NATIVE is 0"),
    ):
        line = run(program, "--version", **environment)
        assert line.startswith("smb3server 0.")
        assert line.count(f"({state})") == len(native.MODULES)


@contextmanager
def serving(program: Path, folder: Path, environment: dict[str, str]) -> Iterator[int]:
    """Serve a folder, and yield the port."""
    share, state = folder / "share", folder / "state"
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", native.SWITCH)}
    options = [
        "--share",
        f"data={share}",
        "--user",
        "u:pw",
        "--listen",
        "127.0.0.1",
        "--port",
        "0",
        "--state",
        str(state),
    ]
    with subprocess.Popen(
        [str(program), *options], stdout=subprocess.PIPE, text=True, cwd="/", env=own | environment
    ) as process:
        try:
            port = None
            for line in process.stdout or ():
                if found := re.match(r"ready tcp 127\.0\.0\.1:(\d+)", line):
                    port = int(found[1])
                    break
            assert port is not None
            yield port
        finally:
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize("switch", [{}, {native.SWITCH: "0"}], ids=["any", "python"])
def test_a_folder_is_listed(installed: tuple[Path, bool], tmp_path: Path, switch: dict[str, str]) -> None:
    (tmp_path / "share").mkdir()
    for name in NAMES:
        (tmp_path / "share" / name).write_text(name)

    async def listed(port: int) -> dict[str, int]:
        client = await Client.connect(await open_tcp("127.0.0.1", port))
        try:
            tree = await (await client.log_on("u", "pw")).tree_connect("data")
            folder = await tree.create("", 0x120089, CreateDisposition.OPEN, CreateOptions.DIRECTORY_FILE)
            return {entry.name: entry.end_of_file async for entry in tree.entries(folder)}
        finally:
            await client.close()

    with serving(installed[0], tmp_path, switch) as port:
        found = asyncio.run(listed(port))
    assert found == dict.fromkeys(NAMES, 8) | {".": 0, "..": 0}

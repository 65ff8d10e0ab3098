"""The client for people against servers that others wrote, and with Kerberos."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli.main import main
from smb3server.client import connect
from smb3server.client.protocol import ClientSession, connection, negotiation
from smb3server.client.sync import connect as connect_sync
from smb3server.wire import attributes as attr
from smb3server.wire.negotiate import Dialect
from tests.lab import kdc as kerberos
from tests.lab.remote import home, run
from tools.access_differential import servers
from tools.access_differential.servers import LOGINS, SHARE

pytestmark = pytest.mark.interop
USER = LOGINS[0]


@pytest.fixture(scope="module")
def samba() -> Iterator[tuple[str, Path]]:
    """A share of smbd: its address and folder."""
    if missing := servers.missing():
        pytest.skip(missing)
    # Samba acts as a user of the host, to whom pytest closes its own folders whenever another run begins.
    with (
        tempfile.TemporaryDirectory(prefix="remote-samba") as folder,
        servers.running_samba(Path(folder) / "samba") as (port, path),
    ):
        Path(folder).chmod(0o755)
        yield f"smb://{USER.name}@127.0.0.1:{port}/{SHARE}", path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with all kinds of names and sizes."""
    found = tmp_path / "source"
    (found / "Ordner ü" / "空").mkdir(parents=True)
    (found / "empty").mkdir()
    for name, size in (("none", 0), ("one", 1), ("Ordner ü/3MiB", (3 << 20) + 1), ("Ordner ü/空/日本 😀.txt", 5)):
        (found / name).write_bytes(os.urandom(size))
    (found / ("x" * 251 + ".txt")).write_bytes(b"long")
    (found / 'a:b*c?"<>| .').write_bytes(b"odd")
    with (found / "sparse").open("wb") as file:
        file.truncate(5 << 30)
        file.seek((4 << 30) + 7)
        file.write(b"far")
    return found


def far(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek((4 << 30) + 6)
        return file.read(5)


@pytest.mark.parametrize("protection", [[], ["--encrypt"], ["--no-signing"]], ids=["signed", "encrypted", "clear"])
def test_samba_gives_back_what_it_got(
    samba: tuple[str, Path],
    source: Path,
    tmp_path: Path,
    protection: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, folder = samba
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    words = [*protection, "--channels", "2"]
    try:
        assert main(["client", "put", "-r", *words, str(source), f"{url}/there"]) == 0, capsys.readouterr().err
        assert (folder / "there" / "sparse").stat().st_blocks < 10_000
        assert main(["client", "get", "-r", *words, f"{url}/there", str(tmp_path / "back")]) == 0
        # diff would read all of the holes.
        subprocess.run(["diff", "-r", "-x", "sparse", source, tmp_path / "back"], check=True)
        assert [far(place / "sparse") for place in (source, tmp_path / "back")] == [b"\0far\0"] * 2
        assert (tmp_path / "back" / "one").stat().st_mtime_ns == (source / "one").stat().st_mtime_ns // 100 * 100
        capsys.readouterr()
        assert main(["client", "sync", "--delete", *words, str(source), f"{url}/there"]) == 0
        assert "0 files" in capsys.readouterr().err
        assert main(["client", "cp", *words, f"{url}/there/Ordner ü/3MiB", f"{url}/there/copy"]) == 0
        assert "by the server" in capsys.readouterr().out
        assert main(["client", "sync", "--delete", *words, str(source), f"{url}/there"]) == 0
        assert "1 removed" in capsys.readouterr().err
        assert main(["client", "rm", "-r", f"{url}/there"]) == 0
        assert os.listdir(folder) == []
    finally:
        shutil.rmtree(folder / "there", ignore_errors=True)


@pytest.mark.parametrize("dialect", [Dialect.SMB_2_1, Dialect.SMB_3_0, Dialect.SMB_3_1_1], ids=hex)
def test_the_negotiation_is_validated(samba: tuple[str, Path], dialect: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a server that chooses an older dialect, the signed question about the negotiation follows."""
    url, _ = samba
    chosen = tuple(number for number in negotiation.DIALECTS if number <= dialect)
    monkeypatch.setattr(negotiation, "DIALECTS", chosen)
    defaults = connection.Requests.connect.__func__.__defaults__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        connection.Requests.connect.__func__,
        "__defaults__",
        (chosen, *defaults[1:]),  # type: ignore[attr-defined]
    )
    asked: list[int] = []
    original = ClientSession._validate_negotiation

    async def counted(self: ClientSession, tree_id: int) -> None:
        asked.append(self.client.dialect)
        await original(self, tree_id)

    monkeypatch.setattr(ClientSession, "_validate_negotiation", counted)

    async def main() -> None:
        async with connect(url, password=USER.password, rdma="off") as share:
            assert share.link.channels[0].tree.client.dialect == dialect
            await share.write_bytes("validated", b"1")
            await share.remove("validated")

    run(main)
    assert asked == ([dialect] if dialect < Dialect.SMB_3_1_1 else [])


def test_samba_file_objects_and_watching(samba: tuple[str, Path]) -> None:
    url, folder = samba
    with connect_sync(url, password=USER.password, rdma="prefer") as share:
        assert "Connection refused" in share.why_not_rdma and not share.uses_rdma
        with share.open("a.txt", "w") as file:
            file.write("one\n" * 1000)
        with share.open("a.txt") as file:
            assert sum(1 for _ in file) == 1000
        with pytest.raises(FileNotFoundError, match="OBJECT_NAME_NOT_FOUND"):
            share.open("none")
        # What copies leave behind must not hide it: Samba hides names that begin with a dot.
        share.upload(folder / "a.txt", "b.txt")
        assert share.stat("b.txt").letters == "A"
        share.remove("b.txt")
        assert share.stat("a.txt").size == (folder / "a.txt").stat().st_size == 4000
        share.mkdir("d/e", parents=True)
        with pytest.raises(OSError, match="not empty"):
            share.rmdir("d")
        assert share.rmtree("d") == 2
        share.remove("a.txt")


def test_a_readonly_file_of_samba_gets_no_data(
    samba: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = samba
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    local = tmp_path / "refused"
    local.write_bytes(bytes(3 << 20))
    with connect_sync(url, password=USER.password) as share:
        share.write_bytes("refused", b"old")
        share.set_attributes("refused", attr.READONLY)
        assert share.stat("refused").attributes & attr.READONLY
        assert main(["client", "put", str(local), f"{url}/refused"]) == 1
        assert "'refused' (the file is READONLY" in capsys.readouterr().err
        assert [path.name for path in folder.iterdir() if path.name.startswith("refused")] == ["refused"]
        share.set_attributes("refused", attr.NORMAL)
        share.remove("refused")


@pytest.mark.root
def test_sambas_full_disk_is_not_kept_full(
    samba: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = samba
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    (tmp_path / "tree").mkdir()
    for number in range(8):
        (tmp_path / "tree" / str(number)).write_bytes(os.urandom(6 << 20))
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "chandle", small], check=True)
    try:
        assert main(["client", "put", "-r", str(tmp_path / "tree"), f"{url}/small"]) == 1
        said = capsys.readouterr().err
        assert "No space left on device" in said
        assert "Traceback" not in said
        assert [path for path in small.rglob("*") if path.name.endswith(".part")] == []
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.skipif(
    not all(shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in kerberos.PROGRAMS),
    reason="MIT's KDC is not installed",
)
@pytest.mark.parametrize("rdma", ["off", "iwarp"])
def test_kerberos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rdma: str) -> None:
    pytest.importorskip("gssapi")
    (tmp_path / "kdc").mkdir()
    realm = kerberos.Kdc(tmp_path / "kdc")
    try:
        for name, value in realm.environment.items():
            monkeypatch.setenv(name, value)
        text = f'[server]\nkeytab = "{realm.keytab}"\n[[user]]\nname = "{kerberos.USER}"\npassword = "of NTLM"\n'
        with home(tmp_path, text=text) as served:
            url = f"//127.0.0.1:{served.port}/share"

            async def main() -> None:
                async with connect(
                    url, kerberos=True, kerberos_name=kerberos.HOST, rdma=rdma, rdma_port=served.rdma_port, channels=2
                ) as share:
                    assert len(share.link.channels) == 2
                    await share.write_bytes("a", b"k" * 100_000)
                    assert await share.read_bytes("a") == b"k" * 100_000

            with pytest.raises(PermissionError, match="kinit"):
                run(main)
            realm.log_on()
            run(main)

            async def elsewhere() -> None:
                await connect(url, kerberos=True, kerberos_name="other.smb3.test", rdma="off")

            with pytest.raises(OSError, match="no Kerberos ticket for cifs/other"):
                run(elsewhere)
    finally:
        realm.stop()


def test_a_mirror_on_samba_keeps_names_that_windows_reserves(
    samba: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samba lists them, files and folders, under substitutes."""
    url, folder = samba
    monkeypatch.setenv("SMB3SERVER_PASSWORD", USER.password)
    source = tmp_path / "source"
    (source / "CON" / "Lpt1.d").mkdir(parents=True)
    for name in ("aux.txt", "nul.log", "CON/COM1", "CON/Lpt1.d/prn", "plain"):
        (source / name).write_text(name)
    try:
        for run_number in range(3):
            assert main(["client", "sync", "--delete", str(source), f"{url}/reserved"]) == 0, capsys.readouterr().err
            shown = capsys.readouterr()
            assert run_number == 0 or (shown.out == "" and "5 same" in shown.err), shown
            assert _texts(folder / "reserved") == _texts(source)
        assert main(["client", "sync", "--delete", f"{url}/reserved", str(tmp_path / "back")]) == 0
        assert _texts(tmp_path / "back") == _texts(source)
        (source / "aux.txt").unlink()
        shutil.rmtree(source / "CON" / "Lpt1.d")
        assert main(["client", "sync", "--delete", str(source), f"{url}/reserved"]) == 0, capsys.readouterr().err
        assert _texts(folder / "reserved") == _texts(source)
    finally:
        shutil.rmtree(folder / "reserved", ignore_errors=True)


def _texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

"""``smb3server client`` copies, moves and removes as cp(1), mv(1) and rm(1) do, and loses nothing."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from smb3server.cli import exits
from smb3server.cli.main import main
from smb3server.client.protocol.tree import Tree
from smb3server.client.sync import connect
from smb3server.wire import attributes as attr
from tests.lab.remote import PASSWORD, Home, home


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with home(tmp_path_factory.mktemp("copies")) as found:
        yield found


@pytest.fixture(autouse=True)
def folder(served: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the share for one test, and the account in the environment."""
    monkeypatch.setenv("SMB3SERVER_PASSWORD", PASSWORD)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    found = served.folder / "test"
    found.mkdir()
    yield found
    shutil.rmtree(found)


@pytest.fixture
def url(served: Home) -> str:
    return f"{served.url}/test"


def client(*words: str | Path) -> int:
    return main(["client", *map(str, words)])


def made(folder: Path, **files: str) -> None:
    """Write files; two underscores are a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def below(folder: Path) -> dict[str, str]:
    """All files below a folder, and their text."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_two_sources_for_one_target(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(folder, p__f="p", q__F="q", q__f2="2")
    (tmp_path / "out").mkdir()
    assert client("get", f"{url}/p/f", f"{url}/q/F", "out") == 0
    assert below(tmp_path / "out") == {"f": "p", "F": "q"}
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").mkdir()
    (folder / "q" / "F").rename(folder / "q" / "f")
    assert client("get", f"{url}/p/f", f"{url}/q/f", f"{url}/q/f2", "out") == exits.EXIT_FAILED
    assert below(tmp_path / "out") == {"f": "p", "f2": "2"}
    assert "another file of this run gets the same name" in capsys.readouterr().err
    made(tmp_path, a__x="1", b__X="2")
    assert client("put", "a/x", "b/X", url) == exits.EXIT_FAILED
    assert (folder / "x").read_text() == "1" and not (folder / "X").exists()
    # Folders of one name become one, as with cp(1), and their files do not replace each other.
    made(tmp_path, a__d__same="1", b__d__same="2", b__d__other="3")
    assert client("put", "-r", "a/d", "b/d", url) == exits.EXIT_FAILED
    assert below(folder / "d") == {"same": "1", "other": "3"}


def test_moves_do_not_replace_each_other(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(folder, p__f="p", q__F="q", q__g="g")
    (folder / "to").mkdir()
    assert client("mv", f"{url}/p/f", f"{url}/q/*", f"{url}/to/") == exits.EXIT_FAILED
    assert below(folder) == {"to/f": "p", "q/F": "q", "to/g": "g"}
    assert "another file was moved there just now" in capsys.readouterr().err


def test_a_slash_at_the_end_needs_a_folder(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(folder, a="a", b="b")
    made(tmp_path, local="l", d__x="x")
    before = below(folder)
    for words in (
        ["mv", f"{url}/a*", f"{url}/logs/"],
        ["cp", f"{url}/a", f"{url}/logs/"],
        ["cp", "-r", f"{url}/a", f"{url}/b/"],
        ["put", "local", f"{url}/logs/"],
        ["put", "-r", "d", f"{url}/logs/"],
        ["get", f"{url}/a", "none/"],
        ["mv", f"{url}/a", f"{url}/b/"],
        ["mv", f"{url}/a/", f"{url}/c"],
        ["rm", f"{url}/a/"],
        ["get", f"{url}/a/", "c"],
        ["put", "local/", f"{url}/c"],
    ):
        assert client(*words) == exits.EXIT_FAILED, words
        assert "folder" in capsys.readouterr().err, words
    assert below(folder) == before and not (tmp_path / "none").exists() and not (tmp_path / "c").exists()
    (folder / "logs").mkdir()
    assert client("mv", f"{url}/a", f"{url}/logs/") == client("put", "local", f"{url}/logs/") == 0
    assert below(folder / "logs") == {"a": "a", "local": "l"}


def test_nothing_is_copied_or_moved_into_itself(
    url: str, folder: Path, served: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    made(folder, a__b__f="f", a__g="g")
    before = below(folder)
    other = url.replace("/share/", "/SHARE/")
    for words in (
        ["cp", "-r", f"{url}/a", f"{url}/a/b"],
        ["cp", "-r", f"{url}/a", f"{other}/A/B/new"],
        ["cp", "-r", f"{url}/a", url],
        ["cp", f"{url}/a/g", f"{url}/A/G"],
        ["cp", f"{url}/a/g", f"{url}/a"],
        ["sync", f"{url}/a", f"{url}/A/b"],
        ["sync", "--delete", f"{url}/a", f"{other}/a"],
        ["sync", "--delete", f"{url}/a/b", f"{url}/A"],
        ["mv", f"{url}/a", f"{url}/A/b"],
        ["mv", f"{url}/a/g", f"{url}/a/g"],
        ["mv", f"{url}/a/g", f"{url}/a"],
    ):
        assert client(*words) == exits.EXIT_FAILED, words
        said = capsys.readouterr().err
        assert "into itself" in said or "the same file" in said, (words, said)
        assert below(folder) == before, words
    assert client("cp", "-r", f"{url}/a", f"{url}/ab") == 0, "a name that begins alike is another one"
    assert client("mv", f"{url}/a", f"{url}/A") == 0
    assert sorted(os.listdir(folder)) == ["A", "ab"]
    assert client("mv", f"{url}/A/g", f"{url}/A/G") == 0
    assert sorted(os.listdir(folder / "A")) == ["G", "b"]


def test_moving_replaces_files_alone(url: str, folder: Path) -> None:
    made(folder, new="new", old="old", d__x="x", e__d__y="y")
    assert client("mv", "-n", f"{url}/new", f"{url}/old") == exits.EXIT_FAILED
    assert client("mv", f"{url}/d", f"{url}/e") == exits.EXIT_FAILED, "a folder of the name is there"
    assert client("mv", f"{url}/d", f"{url}/old") == exits.EXIT_FAILED
    assert below(folder) == {"new": "new", "old": "old", "d/x": "x", "e/d/y": "y"}
    assert client("mv", f"{url}/new", f"{url}/old") == 0
    assert below(folder)["old"] == "new"


def test_removing_goes_on_and_tells(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(folder, a="a", d__x="x", c="c")
    assert client("rm", f"{url}/none", f"{url}/a", f"{url}/d", f"{url}/c") == exits.EXIT_FAILED
    said = capsys.readouterr().err
    assert "none" in said and "remove it with -r" in said
    assert below(folder) == {"d/x": "x"}
    assert client("rm", "-f", f"{url}/none", f"{url}/*.none") == 0
    assert client("rm", "-rf", f"{url}/d", f"{url}/..") == exits.EXIT_USAGE
    assert below(folder) == {"d/x": "x"}


def test_force_removes_read_only_files_and_folders(url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(folder, t__sub__ro="1", t__plain="2", ro="3")
    with connect(url, password=PASSWORD, rdma="off") as share:
        for name in ("t/sub/ro", "t/sub", "ro"):
            share.set_attributes(name, attr.READONLY | attr.HIDDEN)
    assert client("rm", "-r", f"{url}/t") == exits.EXIT_FAILED
    assert (folder / "t" / "sub" / "ro").exists()
    with connect(url, password=PASSWORD, rdma="off") as share:
        assert share.stat("t/sub/ro").attributes & (attr.READONLY | attr.HIDDEN) == attr.READONLY | attr.HIDDEN
    assert client("rm", "-rf", f"{url}/t", f"{url}/ro") == 0, capsys.readouterr().err
    assert os.listdir(folder) == []


def test_what_was_asked_for_and_not_copied_is_a_failure(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, real="r", d__x="x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "nowhere").symlink_to("none")
    assert client("put", "pipe", url) == client("put", "nowhere", url) == exits.EXIT_FAILED
    assert client("put", "-r", "link", url) == exits.EXIT_FAILED
    assert "--links=follow" in capsys.readouterr().err and os.listdir(folder) == []
    assert client("put", "link", url) == 0
    assert below(folder) == {"link": "r"}


def test_links_of_this_machine_are_written_through(url: str, folder: Path, tmp_path: Path) -> None:
    made(folder, f="new", d__f="new")
    made(tmp_path, real="old", out__d__x="x", inner="old")
    (tmp_path / "real").chmod(0o600)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "nowhere").symlink_to("none")
    (tmp_path / "out" / "d" / "f").symlink_to(tmp_path / "inner")
    assert client("get", f"{url}/f", "link") == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o600
    assert client("get", f"{url}/f", "nowhere") == exits.EXIT_FAILED
    assert not (tmp_path / "none").exists() and (tmp_path / "nowhere").is_symlink()
    assert client("get", "-ru", f"{url}/d", "out") == 0
    assert (tmp_path / "out" / "d" / "f").is_symlink() and (tmp_path / "inner").read_text() == "new"
    # A mirror never writes through a link of its target.
    made(tmp_path, inner="old")
    assert client("sync", f"{url}/d", "out/d") == exits.EXIT_FAILED
    assert client("sync", "--delete", f"{url}/d", "out/d") == 0
    assert (tmp_path / "inner").read_text() == "old" and not (tmp_path / "out" / "d" / "f").is_symlink()


def test_names_of_all_kinds_come_back_or_are_told(
    url: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    good = ["\uf022priv", ":priv", "\uf000\uf022", "\uf028", "a\uf029", "a.", "CON", "aux.txt", "straße", "strasse"]
    for name in good:
        (source / name).write_text(name)
    assert client("sync", source, url) == 0, capsys.readouterr().err
    assert client("sync", url, "back") == 0, capsys.readouterr().err
    assert below(tmp_path / "back") == {name: name for name in good}
    capsys.readouterr()
    assert client("sync", "--delete", source, url) == client("sync", "--delete", url, "back") == 0
    shown = capsys.readouterr()
    assert shown.out == "" and f"{len(good)} same" in shown.err
    bad = os.fsdecode(b"latin\xe9")
    (source / bad).write_text("b")
    (folder / "extra").write_text("e")
    assert client("sync", "--delete", source, url) == exits.EXIT_FAILED
    shown = capsys.readouterr()
    assert "not UTF-8" in shown.err and "--exclude" in shown.err and (folder / "extra").exists()
    assert client("sync", "--delete", "--exclude", "latin?", source, url) == 0
    assert not (folder / "extra").exists()


def test_one_bad_name_of_a_server_hides_no_others(
    url: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(folder, fine="fine", victim="v")
    real = Tree.entries

    async def listed(self: Tree, *words: object) -> object:
        async for entry in real(self, *words):  # type: ignore[arg-type]
            yield entry._replace(name="..\\..\\\x1b[31mevil") if entry.name == "victim" else entry

    monkeypatch.setattr(Tree, "entries", listed)
    for words in (["get", "-r", url, "back"], ["sync", "--delete", url, "back2"], ["ls", url], ["du", url]):
        assert client(*words) == exits.EXIT_FAILED, words
        shown = capsys.readouterr()
        assert "\x1b" not in shown.out + shown.err
    assert below(tmp_path / "back") == below(tmp_path / "back2") == {"fine": "fine"}
    assert not list(tmp_path.rglob("*evil*"))


def test_a_window_for_times(url: str, folder: Path, tmp_path: Path) -> None:
    made(tmp_path, source__f="a")
    os.utime(tmp_path / "source" / "f", (1_600_000_000, 1_600_000_000))
    assert client("sync", "source", url) == 0
    made(tmp_path, source__f="b")
    os.utime(tmp_path / "source" / "f", (1_600_000_001, 1_600_000_001))
    assert client("sync", "--modify-window", "1", "source", url) == 0
    assert below(folder) == {"f": "a"}
    assert client("sync", "source", url) == 0
    assert below(folder) == {"f": "b"}

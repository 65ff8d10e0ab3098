"""Mirrors of random trees, with random options and with faults in between; a model says what must come of them.

The servers are this one and Debian's smbd, which lists names that Windows reserves under others. rsync judges where its
rules are the same. MODEL_EXAMPLES=2000 gives the long tests as many examples, and others in each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, Phase, assume, event, given, note, settings
from hypothesis import strategies as st

from smb3server.client import connect, errors, names
from smb3server.client.mirror import Copier, Event, MirrorOptions, Totals, copy_all
from smb3server.client.places import LocalPlace, Place, SharePlace
from smb3server.client.transfers import Progress
from tests.lab import mirror_model as model
from tests.lab.mirror_model import Map, Node, Rules
from tests.lab.mirrors import Ears
from tests.lab.remote import PASSWORD, home, run
from tools.access_differential import servers
from tools.access_differential.servers import LOGINS, SHARE

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
NAMES = (
    "a", "A", "b", "x:y", "dot.", "blank ", "ß", "ss", "é", "É", "e\u0301", "k", "\u212a", "CON", "aux.txt", "Nul.b",
    "\uf022p", "keep.tmp", "cache", "AB12CD~1", "日本", "x.part", os.fsdecode(b"bad\xff"),
)  # fmt: skip
TIMES = (NOW, NOW + SECOND, NOW + 100, NOW + 123_456_789, 0, -SECOND)
FAULTS = ("", "", "", "cut", "source", "target", "denied", "full")
TOKENS = itertools.count()


class Place_(NamedTuple):
    """A share, the folder behind it, and the names there."""

    url: str
    folder: Path
    password: str
    to_disk: Map
    from_disk: Map
    cut: Callable[[], object] | None


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place_]:
    with home(tmp_path_factory.mktemp("mirrors")) as found:
        yield Place_(found.url, found.folder, PASSWORD, model.on_our_disk, model.from_our_disk, found.cut)


@pytest.fixture(scope="module")
def samba() -> Iterator[Place_]:
    if missing := servers.missing():
        pytest.skip(missing)
    user = LOGINS[0]
    # Samba acts as a user of the host, to whom pytest closes its own folders whenever another run begins.
    with (
        tempfile.TemporaryDirectory(prefix="mirrors-samba") as folder,
        servers.running_samba(Path(folder) / "samba") as (port, path),
    ):
        Path(folder).chmod(0o755)
        url = f"smb://{user.name}@127.0.0.1:{port}/{SHARE}"
        yield Place_(url, path, user.password, model.on_samba, names.from_share, None)


# Trees


def trees(shared: bool) -> st.SearchStrategy[Node]:
    """Folders of this machine, or of a share: there names differ in more than case, and there are files and folders."""
    kinds = ("file", "file", "folder") if shared else ("file", "file", "file", "folder", "folder", "link", "fifo")

    def folders(depth: int) -> st.SearchStrategy[dict[str, Node]]:
        nodes = st.sampled_from(kinds).flatmap(lambda kind: _nodes(kind, depth, folders))
        return st.dictionaries(st.sampled_from(NAMES), nodes, max_size=5).map(_apart if shared else dict)

    return folders(0).map(lambda below: Node("folder", time=NOW, below=below))


def _apart(below: dict[str, Node]) -> dict[str, Node]:
    """Leave out names that some server may take for another one of the folder, and those that no share has."""
    apart = {names.key(name).casefold(): (name, node) for name, node in below.items() if names.is_unicode(name)}
    return dict(apart.values())


def _nodes(
    kind: str, depth: int, folders: Callable[[int], st.SearchStrategy[dict[str, Node]]]
) -> st.SearchStrategy[Node]:
    if kind == "link":
        return st.sampled_from([*NAMES[:4], "nowhere", "."]).map(lambda to: Node("link", to=to))
    if kind == "fifo":
        return st.just(Node("fifo"))
    times = st.sampled_from(TIMES)
    if kind == "folder":
        below = folders(depth + 1) if depth < 2 else st.just({})
        return st.builds(lambda below, time: Node("folder", below=below, time=time), below, times)
    sizes, modes = st.sampled_from((12, 13)), st.sampled_from((0o644, 0o600, 0o755, 0o444))
    return st.builds(
        lambda size, time, mode: Node("file", b"%-*d" % (size, next(TOKENS)), time, mode), sizes, times, modes
    )


RULES = st.builds(
    Rules,
    delete=st.sampled_from((True, True, False)),
    checksum=st.sampled_from((False, False, True)),
    follow=st.booleans(),
    exclude=st.sampled_from(((), (), ("*.tmp",), ("cache/", "a"), ("bad*",))),
)


class Case(NamedTuple):
    """One run: which way, what is where, how, and what goes wrong when."""

    way: str
    """up, down or across."""
    source: Node
    target: Node
    rules: Rules
    fault: str
    when: int


CASES = st.sampled_from(("up", "down", "across")).flatmap(
    lambda way: st.builds(
        Case,
        st.just(way),
        trees(way != "up"),
        trees(way != "down"),
        RULES.map(lambda rules: dataclasses.replace(rules, key=str if way == "down" else names.key)),
        st.sampled_from(FAULTS),
        st.integers(0, 3),
    )
)


# Runs


class Faulty(Ears):
    """Does something before the n-th file is copied."""

    def __init__(self, when: int, fault: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.fault, self.happened = when, fault, False

    def begin(self, path: str, size: int) -> Progress:
        self.left -= 1
        if self.left == -1:
            self.happened = True
            self.fault()
        return super().begin(path, size)


def play(place: Place_, case: Case, local: Path, ears: Ears, dry_run: bool = False) -> Totals:
    """Run the mirror; errors that end it count as a failure."""
    rules = case.rules
    how = MirrorOptions(
        recursive=True,
        only_changed=True,
        mirror=True,
        resume=True,
        delete=rules.delete,
        checksum=rules.checksum,
        follow_links=rules.follow,
        exclude=rules.exclude,
        dry_run=dry_run,
    )

    async def main() -> Totals:
        async with connect(place.url, password=place.password, rdma="off", patience=5) as share:
            source: Place = LocalPlace(local) if case.way == "up" else SharePlace(share, "source")
            target: Place = LocalPlace(local) if case.way == "down" else SharePlace(share, "target")
            root = await source.look("")
            assert root is not None
            try:
                return await copy_all([(source, root, target, "")], how, ears)
            except OSError as error:
                ears.event(Event("error", "", text=f"{type(error).__name__} {error}"))
                return Totals(failed=1)

    return run(main)


@contextlib.contextmanager
def _on_disk(place: Place_, case: Case) -> Iterator[tuple[Case, Path, Path, Path]]:
    """Make the trees of a case, and yield it as the disks have it, with the local folder, the source and the target."""
    with tempfile.TemporaryDirectory(prefix="mirrors") as scratch:
        local = Path(scratch) / "local"
        folders = {"source": place.folder / "source", "target": place.folder / "target"}
        if case.way != "across":
            folders["target" if case.way == "down" else "source"] = local
        try:
            for name, node in (("source", case.source), ("target", case.target)):
                folder = folders[name]
                folder.mkdir()
                model.make(folder, node.below, str if folder == local else place.to_disk)
            _open(place.folder)
            read = {
                name: Node("folder", below=model.read(folder, str if folder == local else place.from_disk))
                for name, folder in folders.items()
            }
            yield case._replace(**read), local, folders["source"], folders["target"]
        finally:
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)


def _open(folder: Path) -> None:
    """Give all to the user as whom Samba acts."""
    user = pwd.getpwnam(LOGINS[0].name)
    for path in folder.rglob("*"):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def check(place: Place_, case: Case) -> None:
    """Play a case and hold it against the model."""
    with _on_disk(place, case) as found:
        _check(place, *found)


def _check(place: Place_, case: Case, local: Path, source: Path, target: Path) -> None:
    key = case.rules.key
    from_disk = str if target == local else place.from_disk
    source_from_disk = str if source == local else place.from_disk

    def read_target() -> dict[str, Node]:
        return model.read(target, from_disk, key)

    def read_source() -> dict[str, Node]:
        return model.read(source, source_from_disk)

    before, origin = read_target(), read_source()
    wanted = model.expected(case.source, case.target, case.rules)
    ears = Ears()
    play(place, case, local, ears, dry_run=True)
    assert list(model.differences(read_target(), before, modes=True)) == [], "a dry run changes nothing"
    said = {action: _paths(ears, action, target == local, place) for action in ("copy", "remove")}
    assert said["copy"] == wanted.copied, (said, wanted)
    assert wanted.failed or said["remove"] == wanted.removed, (said, wanted)

    added: list[bytes] = []
    heard = Faulty(case.when, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        heard.fault = _fault(place, case, source, target, added, patch)
        totals = play(place, case, local, heard)
    note("\n".join(map(str, heard.events)))
    event(f"{case.way} {case.fault if heard.happened else 'undisturbed'} {'failed' if totals.failed else 'done'}")
    found = Node("folder", below=read_target()).texts()
    must_stay = wanted.must_stay
    if case.fault == "source" and heard.happened:
        # What was the same may have changed before it was compared.
        must_stay -= _replaceable(case.source.below, case.target.below, key)
    lost = (must_stay | set(added)) - found
    assert not lost, (lost, heard.events)
    if totals.failed:
        replaced = case.target.texts() - found
        assert totals.removed == 0 or case.fault == "target"
        # The fault itself replaces files.
        assert case.fault == "target" or replaced <= _replaceable(case.source.below, case.target.below, key), (
            heard.events
        )
    if not heard.happened or case.fault in ("", "cut"):
        assert list(model.differences(read_source(), origin, modes=True)) == [], "the source is only read"
    if not heard.happened:
        assert bool(totals.failed) == wanted.failed, heard.events
    changed = heard.happened and case.fault == "source"
    known = case.source.texts() | case.target.texts() | Node("folder", below=read_source()).texts() | set(added)
    parts = {path.read_bytes() for path in target.rglob("*.*.part") if path.is_file()}
    assert found - parts <= known, "every file is that of one moment"
    if not totals.failed and not added and not changed:
        modes = case.way == "down"
        assert list(model.differences(read_target(), wanted.below, modes=modes)) == [], heard.events
    # Without a fault it comes to the same end, and then nothing is left to do.
    case = case._replace(fault="")
    wanted = model.expected(
        Node("folder", below=read_source()), Node("folder", below=model.read(target, from_disk)), case.rules
    )
    ears = Ears()
    totals = play(place, case, local, ears)
    assert bool(totals.failed) == wanted.failed, ears.events
    if not totals.failed:
        # The run may have completed what the fault broke off: then the part has its file's name now.
        left, asked = _without_parts(read_target()), _without_parts(wanted.below)
        assert list(model.differences(left, asked, modes=False)) == [], ears.events
        ears = Ears()
        totals = play(place, case, local, ears)
        assert (totals.files, totals.removed, totals.failed) == (0, 0, 0), ears.events
    assert not list(target.rglob("*.aside")) or totals.failed, "nothing is left aside"


def _without_parts(below: dict[str, Node]) -> dict[str, Node]:
    """Leave out the parts of copies that were broken off."""
    return {
        name: dataclasses.replace(node, below=_without_parts(node.below))
        for name, node in below.items()
        if node.kind != "file" or re.fullmatch(r".+\.[0-9a-f]{16}\.part", name, re.IGNORECASE) is None
    }


def _agrees_with_rsync(place: Place_, given_case: Case) -> None:
    """Let rsync say what it would copy and remove, where its rules are the same: names that differ in no more than case
    are one for it, it copies what is not UTF-8, and follows links that lead nowhere differently.
    """
    with _on_disk(place, given_case) as (case, local, source, target):
        wanted = model.expected(case.source, case.target, case.rules)
        all_names = {name for _, _, found in (*os.walk(source), *os.walk(target)) for name in found} | {
            name for _, found, _ in (*os.walk(source), *os.walk(target)) for name in found
        }
        plain = all(names.is_unicode(name) and place.to_disk(name) == name for name in all_names)
        apart = len({names.key(name) for name in all_names}) == len(all_names)
        assume(plain and apart and not wanted.failed and not case.rules.follow)
        ears = Ears()
        play(place, case, local, ears, dry_run=True)
        options = ["--delete"] if case.rules.delete else []
        options += ["--checksum"] if case.rules.checksum else []
        options += [f"--exclude={pattern}" for pattern in case.rules.exclude]
        words = ["rsync", "-rt8", "--modify-window=-1", "--dry-run", "--out-format=%i %n", *options]
        said = subprocess.run(
            [*words, f"{source}/", f"{target}/"], capture_output=True, text=True, check=True, errors="surrogateescape"
        )
        lines = [(line[:11].rstrip(), line[12:]) for line in said.stdout.splitlines()]
        copied = {rest for how, rest in lines if how.startswith(">f")}
        assert _paths(ears, "copy", target == local, place) == copied, said.stdout
        removed = _paths(ears, "remove", target == local, place)
        if not any(os.path.lexists(source / path) for path in removed):
            # In a dry run it names folders that it cannot remove, so only what is in them counts.
            deleted = {rest for how, rest in lines if how == "*deleting" and not rest.endswith("/")}
            assert deleted == {leaf for path in removed for leaf in _leaves(target, path)}, said.stdout
        event("judged")


def _leaves(root: Path, path: str) -> set[str]:
    """The entries below a path, or it, that are no folders."""
    found = root / path
    if found.is_symlink() or not found.is_dir():
        return {path}
    return {leaf for name in os.listdir(found) for leaf in _leaves(root, f"{path}/{name}")}


def _paths(ears: Ears, action: str, local: bool, place: Place_) -> set[str]:
    found = [event.path for event in ears.events if event.action == action]
    if not local:
        return {unquote(path).partition("/target/")[2] for path in found}
    return {path.partition("/local/")[2] for path in found}


def _replaceable(source: dict[str, Node], target: dict[str, Node], key: Map) -> set[bytes]:
    """The contents of the target that copies may have replaced: files where the source may have a file."""
    found: set[bytes] = set()
    known = {key(name): node for name, node in target.items()}
    for name, node in source.items():
        old = known.get(key(name))
        if old is not None and old.kind == "file" and node.kind in ("file", "link"):
            found.add(old.text)
        elif old is not None and old.kind == "folder" and node.kind in ("folder", "link"):
            below = node.below if node.kind == "folder" else {}
            found |= old.texts() if node.kind == "link" else _replaceable(below, old.below, key)
    return found


def _fault(
    place: Place_, case: Case, source: Path, target: Path, added: list[bytes], patch: pytest.MonkeyPatch
) -> Callable[[], None]:
    def change_source() -> None:
        for path in sorted(source.rglob("*")):
            if path.is_file() and not path.is_symlink():
                path.write_bytes(b"%-12d" % next(TOKENS))

    def change_target() -> None:
        """Replace or add what the mirror has listed, when it comes to removing."""
        real = Copier._remove_extras

        async def remove_extras(copier: Copier) -> None:
            extras = [
                target / (item.path if target.name == "local" else _disk_path(place, item.path))
                for _, item in copier._extras
            ]
            asides = [
                target / (one.path if target.name == "local" else _disk_path(place, one.path)) for one in copier._asides
            ]
            for folder in [target, *sorted(target.rglob("*"))]:
                gone = any(folder.is_relative_to(extra) for extra in extras + asides)
                if folder.is_dir() and not folder.is_symlink() and not gone:
                    added.append(b"%-12d" % next(TOKENS))
                    (folder / "new").write_bytes(added[-1])
            for path in extras:
                if path.is_file() and not path.is_symlink():
                    added.append(b"%-12d" % next(TOKENS))
                    path.unlink()
                    path.write_bytes(added[-1])
            _open(place.folder)
            await real(copier)

        patch.setattr(Copier, "_remove_extras", remove_extras)

    def fail() -> None:
        number = errno.EACCES if case.fault == "denied" else errno.ENOSPC

        async def transfer(copier: Copier, job: Any, progress: Progress) -> Any:
            raise errors.make(number, job.path)

        patch.setattr(Copier, "_transfer", transfer)

    def cut() -> None:
        if place.cut is not None:
            place.cut()

    return {"": lambda: None, "source": change_source, "target": change_target, "cut": cut}.get(case.fault, fail)


def _disk_path(place: Place_, path: str) -> str:
    return "/".join(map(place.to_disk, path.split("/")))


ONCE = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
# Whoever asks for a number of examples looks for new ones; otherwise each run tries the same.
LONG = settings(
    max_examples=int(os.environ.get("MODEL_EXAMPLES", "200")),
    derandomize="MODEL_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
    print_blob=True,
    report_multiple_bugs=False,
)


@ONCE
@given(case=CASES)
def test_mirrors(ours: Place_, case: Case) -> None:
    check(ours, case)


@pytest.mark.long
@pytest.mark.timeout(1800)
@LONG
@given(case=CASES)
def test_many_mirrors(ours: Place_, case: Case) -> None:
    check(ours, case)


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
@LONG
@given(case=CASES)
def test_rsync_agrees(ours: Place_, case: Case) -> None:
    _agrees_with_rsync(ours, case)


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
@LONG
@given(case=CASES)
def test_many_mirrors_with_samba(samba: Place_, case: Case) -> None:
    check(samba, case)

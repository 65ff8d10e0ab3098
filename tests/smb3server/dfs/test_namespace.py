"""Namespaces, links and targets, and the order of targets (MS-DFSC 3.2.5.5)."""

from __future__ import annotations

import ipaddress

import pytest

from smb3server.backends.base import Disposition, OpenRequest
from smb3server.dfs.namespace import Link, Namespace, Priority, Site, Target, target_sets
from smb3server.dfs.store import NamespaceStore
from smb3server.wire import attributes as attr
from smb3server.wire.status import NtStatus, StatusError

SITES = (
    Site("berlin", (ipaddress.ip_network("192.0.2.0/24"),), ("paris",)),
    Site("paris", (ipaddress.ip_network("198.51.100.0/24"), ipaddress.ip_network("192.0.2.128/25")), ()),
    Site("far", (ipaddress.ip_network("2001:db8::/32"),), ()),
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("//files1/projects", Target("files1", ("projects",))),
        ("\\\\files1\\projects\\a b\\c", Target("files1", ("projects", "a b", "c"))),
        ("data", Target("", ("data",))),
        ("data/folder", Target("", ("data", "folder"))),
        ("//2001:db8::1/data", Target("2001:db8::1", ("data",))),
        ("//a/b; priority=last; rank=31", Target("a", ("b",), Priority.LAST, 31)),
        ("//a/b;site=berlin", Target("a", ("b",), site="berlin")),
    ],
)
def test_a_target_as_text(text: str, target: Target) -> None:
    assert Target.parse(text) == target
    assert Target.parse(str(target)) == target


WRONG = """
//
//files1
///x
/data
//a:445/b
//a/b; rank=32
//a/b; rank=-1
//a/b; priority=best
//a/b; cost=3
//a/b; rank
//a/b; rank=1; rank=2
//a/b*
//a b/c
//a/../b
"""


@pytest.mark.parametrize("text", WRONG.split("\n")[1:])
def test_what_is_no_target(text: str) -> None:
    with pytest.raises(ValueError, match=r"share|rank|priority|after|name|//"):
        Target.parse(text)


def namespace(*links: str) -> Namespace:
    return Namespace("files", tuple(Link.make(name, ["//a/b"]) for name in links))


def test_the_link_above_a_path() -> None:
    found = namespace("projects", "in/Folders/deep", "pro")
    assert found.covering(("PROJECTS", "x", "y")) == found.links[0]
    assert found.covering(("projects",)) == found.links[0]
    assert found.covering(("in", "folders", "DEEP")) == found.links[1]
    assert found.covering(("in", "folders")) is None
    assert found.covering(("projects2",)) is None
    assert found.covering(()) is None
    assert found.covering(tuple("x" * 100_000)) is None


@pytest.mark.parametrize("links", [("a", "A"), ("a", "a/b"), ("a/b/c", "A/B")])
def test_links_that_could_not_be_reached(links: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"twice|could not be reached"):
        namespace(*links)


def test_links_and_targets_that_are_incomplete() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        Link.make("/", ["//a/b"])
    with pytest.raises(ValueError, match="at least one target"):
        Link.make("a", [])
    with pytest.raises(ValueError, match="no site rome"):
        Namespace("files", (Link.make("a", ["//a/b; site=rome"]),), sites=SITES)


@pytest.mark.parametrize(
    ("address", "named", "site"),
    [
        ("192.0.2.7", "", "berlin"),
        ("::ffff:192.0.2.7", "", "berlin"),
        ("192.0.2.200", "", "paris"),
        ("2001:db8::5%eth0", "", "far"),
        ("203.0.113.1", "", None),
        ("not an address", "", None),
        ("192.0.2.7", "PARIS", "paris"),
        ("192.0.2.7", "unknown", "berlin"),
    ],
)
def test_the_site_of_a_client(address: str, named: str, site: str | None) -> None:
    found = Namespace("files", sites=SITES).site_of(address, named)
    assert (found.name if found else None) == site


def order(texts: list[str], site: Site | None) -> list[list[str]]:
    return [[target.server for target in one] for one in target_sets([*map(Target.parse, texts)], site, list.sort)]


@pytest.fixture(autouse=True)
def sortable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the shuffle, a set is put in the order of its servers' names."""
    monkeypatch.setattr(Target, "__lt__", lambda one, other: one.server < other.server, raising=False)


def test_targets_without_a_preference_are_one_set() -> None:
    assert order(["//c/x", "//a/x", "//b/x"], None) == [["a", "b", "c"]]


def test_priorities_and_ranks() -> None:
    texts = ["//last/x; priority=last", "//low/x; priority=low", "//two/x; rank=2", "//one/x; rank=1"]
    texts += ["//high/x; priority=high", "//first2/x; priority=first; rank=1", "//first/x; priority=first"]
    assert order(texts, None) == [["first"], ["first2"], ["high"], ["one"], ["two"], ["low"], ["last"]]


def test_near_sites_come_before_priorities_but_for_first_and_last() -> None:
    texts = ["//far/x; site=far; priority=high", "//paris/x; site=paris", "//berlin/x; site=berlin; priority=low"]
    texts += ["//anywhere/x", "//first/x; site=far; priority=first", "//last/x; site=berlin; priority=last"]
    assert order(texts, SITES[0]) == [["first"], ["berlin"], ["paris"], ["far"], ["anywhere"], ["last"]]
    assert order(texts, SITES[1]) == [["first"], ["paris"], ["far"], ["anywhere"], ["berlin"], ["last"]]


def test_a_set_is_shuffled() -> None:
    texts = [f"//server{number}/x" for number in range(8)]
    found = {tuple(target.server for target in target_sets([*map(Target.parse, texts)], None)[0]) for _ in range(50)}
    assert len(found) > 1


def names(store: NamespaceStore, *path: str) -> dict[str, int]:
    folder = store.open(OpenRequest(path, read=True, directory=True))
    return {entry.name: entry.info.reparse_tag for entry in folder.scan() if entry.name not in (".", "..")}


def test_the_folders_of_a_namespace() -> None:
    store = NamespaceStore(namespace("projects", "in/folders/deep", "in/other"))
    assert names(store) == {"projects": attr.TAG_DFS, "in": 0}
    assert names(store, "in") == {"folders": 0, "other": attr.TAG_DFS}
    for path in (("projects",), ("projects", "x"), ("IN", "other", "y", "z")):
        with pytest.raises(StatusError) as refused:
            store.open(OpenRequest(path))
        assert refused.value.status == NtStatus.PATH_NOT_COVERED
    link = store.open(OpenRequest(("projects",), open_reparse_point=True))
    assert link.info().attributes == attr.DIRECTORY | attr.REPARSE_POINT
    with pytest.raises(OSError, match="Read-only"):
        link.unlink()
    with pytest.raises(OSError, match="Read-only"):
        store.open(OpenRequest(("new",), disposition=Disposition.CREATE))


def test_folders_come_and_go_with_their_links() -> None:
    store = NamespaceStore(namespace("projects", "in/deep"))
    kept = store.stat(("projects",)).key
    changes = store.use(namespace("projects", "in", "new/one"))
    assert changes == [(("in", "deep"), False), (("new",), True), (("new", "one"), True)]
    assert names(store) == {"projects": attr.TAG_DFS, "in": attr.TAG_DFS, "new": 0}
    assert store.stat(("projects",)).key == kept
    assert store.use(namespace()) != []
    assert names(store) == {}

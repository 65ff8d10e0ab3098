"""Names compare by the rules of their store, whoever compares them: notification, deletion, renaming, listing."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.backends.name_rules import POSIX, WINDOWS, NameRules
from smb3server.client import connect
from smb3server.files.notify import NotifyHub
from smb3server.files.recycling import Recycling
from smb3server.files.searches import entry_matcher
from smb3server.wire.change_notify import Action, NotifyFilter
from tests.lab.remote import PASSWORD, home, run

APART = [("strasse", "straße"), ("fi", "ﬁ"), ("i", "ı"), ("s", "ſ")]
"""Two names for Windows, and one for a comparison that folds more."""
ALIKE = [("data", "Data"), ("äöü", "ÄÖÜ"), ("я", "Я")]
"""One name for Windows."""


def told(rules: NameRules, watched: str, changed: str) -> bool:
    """Whether a watcher of one folder is told of a new file in another one."""

    async def test() -> bool:
        hub = NotifyHub()
        hub.store = MemoryBackend()
        hub.store.name_rules = rules
        watcher = hub.watch((watched,), NotifyFilter.FILE_NAME, False, 65536)
        hub.report((changed, "new"), Action.ADDED, NotifyFilter.FILE_NAME)
        return bool(watcher._queue)

    return asyncio.run(test())


@pytest.mark.parametrize(("one", "other"), APART + ALIKE)
def test_all_who_compare_agree(one: str, other: str) -> None:
    alike = (one, other) in ALIKE
    for rules, wanted in ((WINDOWS, alike), (POSIX, False)):
        assert rules.same(("a", one), ("a", other)) == wanted
        assert told(rules, one, other) == wanted
        assert entry_matcher(one, rules.key)(other) == wanted
        assert entry_matcher(one + "*", rules.key)(other + "x") == wanted
        assert rules.same((one,), (one,)) and told(rules, one, one) and entry_matcher(one, rules.key)(one)


ROOT = Path(__file__).resolve().parents[3]
FOLDS = re.compile(r"\b(?:casefold|upper|lower)\(\)|\bupcase\(")
OTHER_NAMES = {
    "access/conditions/evaluation.py": "names and values of claims",
    "access/conditions/text.py": "words of conditions",
    "access/descriptor.py": "SIDs",
    "access/identity.py": "users",
    "access/sddl.py": "words of descriptors",
    "access/sid_names.py": "abbreviations of SIDs",
    "access/text_reader.py": "words of descriptors and of conditions",
    "commands/create/handler.py": "the file of quotas, which lies in no folder",
    "commands/create/virtual_disks.py": "the suffix of shared virtual disks, and extended attributes",
    "commands/fsctl/dfs.py": "servers and shares",
    "commands/info/file_levels.py": "the 8.3 name that is shown, which is in upper case",
    "commands/info/query_info.py": "extended attributes",
    "commands/info/set_info.py": "extended attributes",
    "commands/tree_connect.py": "shares",
    "files/file.py": "streams",
    "files/searches.py": "8.3 names",
    "state/ceilings.py": "users",
    "state/events.py": "users, and names of events",
    "state/file_events.py": "names of rights and commands",
    "state/server_state.py": "shares",
    "state/shadow_copies.py": "shares",
}
"""What is compared there is no name of a file or folder."""


def test_nobody_else_has_a_comparison_of_his_own() -> None:
    found = {
        str(path.relative_to(ROOT / "smb3server"))
        for room in ("commands", "files", "state", "dispatch", "access")
        for path in (ROOT / "smb3server" / room).rglob("*.py")
        if FOLDS.search(path.read_text())
    }
    assert found == set(OTHER_NAMES)


@pytest.mark.parametrize(("one", "other"), APART + ALIKE)
def test_the_recycle_folder_is_found_by_the_same_rules(one: str, other: str) -> None:
    recycling = Recycling((one, "{user}"))
    for rules, wanted in ((WINDOWS, (one, other) in ALIKE), (POSIX, False)):
        assert recycling.holds((one,), rules)
        assert recycling.holds((other,), rules) == recycling._is_inside((other, "u", "f"), rules) == wanted


def test_watchers_follow_new_rules_of_their_store() -> None:
    async def test() -> None:
        hub = NotifyHub()
        hub.store = MemoryBackend()
        watcher = hub.watch(("data",), NotifyFilter.FILE_NAME, False, 65536)
        hub.store.name_rules = POSIX
        hub.report(("Data", "new"), Action.ADDED, NotifyFilter.FILE_NAME)
        assert not watcher._queue
        hub.report(("data", "new"), Action.ADDED, NotifyFilter.FILE_NAME)
        assert watcher._queue

    asyncio.run(test())


def test_a_hard_link_is_deleted_while_another_name_of_the_file_is_open(tmp_path: Path) -> None:
    with home(tmp_path) as server:
        (server.folder / "Maß").write_text("text")
        os.link(server.folder / "Maß", server.folder / "Mass")

        async def test() -> None:
            async with connect(server.url, password=PASSWORD, rdma="off") as share:
                async with await share.open("Mass") as file:
                    await share.remove("Maß")
                    assert os.listdir(server.folder) == ["Mass"]
                    assert await file.read() == b"text"
                assert await share.read_text("Mass") == "text"

        run(test)


@pytest.mark.parametrize("case_sensitive", [False, True])
def test_a_folder_is_renamed_while_a_file_of_another_one_is_open(tmp_path: Path, case_sensitive: bool) -> None:
    folder = tmp_path / "exact"
    folder.mkdir()
    os.chmod(folder, 0o777)
    text = f'[server]\nallow_root = true\n[[share]]\nname = "exact"\npath = "{folder}"\n'
    text += f"case_sensitive = {str(case_sensitive).lower()}\n"
    one, other = ("data", "Data") if case_sensitive else ("strasse", "straße")
    with home(tmp_path, text=text) as server:
        for name in (one, other):
            (folder / name).mkdir()
            os.chmod(folder / name, 0o777)
            (folder / name / "f").write_text(name)

        async def test() -> None:
            url = server.url.replace("/share", "/exact")
            async with connect(url, password=PASSWORD, rdma="off") as share:
                async with await share.open(f"{one}/f") as file:
                    await share.rename(other, "renamed")
                    assert await file.read() == one.encode()
                assert sorted(os.listdir(folder)) == sorted([one, "renamed"])

        run(test)

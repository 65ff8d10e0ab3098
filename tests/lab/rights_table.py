"""Which rights each operation needs, on which object: the data of ``test_rights`` and of docs/access.md.

``python -m tests.lab.rights_table --write`` puts the table into the page.

Objects, all in one folder of a share::

    folder/file     "file" in its parent "folder"; it has a stream, which has its file's rights
    folder/inner    "inner", a folder
    there/target    "target", which a rename or link replaces, in its parent "there"
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from smb3server.wire.create import Access
from smb3server.wire.status import NtStatus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "access.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"

RIGHTS: dict[str, int] = {
    **{right.name: int(right) for right in Access if right.name is not None},
    "ADD_FILE": int(Access.WRITE_DATA),
    "ADD_SUBDIRECTORY": int(Access.APPEND_DATA),
    "LIST": int(Access.READ_DATA),
}
OBJECTS = ("file", "folder", "inner", "target", "there")


class Right(NamedTuple):
    object: str
    name: str

    @property
    def mask(self) -> int:
        return RIGHTS[self.name]


Need = tuple[Right, ...]
"""Any of these rights; () is what nobody has."""


class Row(NamedTuple):
    operation: str
    needs: tuple[Need, ...]
    """All of them."""
    changes: bool
    """It changes something: no read-only share allows it."""
    refusal: NtStatus = NtStatus.ACCESS_DENIED
    section: str = ""
    privilege: str = ""
    """A privilege that is enough without any of the rights."""


def _need(text: str) -> Need:
    if text == "nobody":
        return ()
    return tuple(Right(*right.split(".")) for right in text.split(" or "))


def _row(
    operation: str,
    needs: str,
    section: str,
    changes: bool = True,
    refusal: NtStatus | None = None,
    privilege: str = "",
) -> Row:
    found = tuple(map(_need, needs.split(", "))) if needs else ()
    return Row(operation, found, changes, refusal or NtStatus.ACCESS_DENIED, section, privilege)


_BY_PARENT = {"DELETE": " or folder.DELETE_CHILD", "READ_ATTRIBUTES": " or folder.LIST"}
_OPENS = (
    "READ_DATA READ_EA EXECUTE READ_ATTRIBUTES READ_CONTROL SYNCHRONIZE",
    "WRITE_DATA APPEND_DATA WRITE_EA DELETE_CHILD WRITE_ATTRIBUTES DELETE WRITE_DAC WRITE_OWNER",
)
DELETE_FILE = "file.DELETE or folder.DELETE_CHILD"
DELETE_INNER = "inner.DELETE or folder.DELETE_CHILD"
DELETE_TARGET = "target.DELETE or there.DELETE_CHILD"
_OPEN, _NEW, _ACCESS = "MS-FSA 2.1.5.1.2", "MS-FSA 2.1.5.1.1", "MS-FSA 2.1.5.1.2.1"
_SET, _RENAME, _LINK = "MS-SMB2 3.3.5.21.1", "MS-FSA 2.1.5.15.12", "MS-FSA 2.1.5.15.6"
_FSCTL = "MS-FSA 2.1.5.10"
_SECURITY, _BACKUP, _RESTORE = "SeSecurityPrivilege", "SeBackupPrivilege", "SeRestorePrivilege"

TABLE: tuple[Row, ...] = (
    *(
        _row(f"open for {right}", f"file.{right}{_BY_PARENT.get(right, '')}", _ACCESS, False)
        for right in _OPENS[0].split()
    ),
    *(_row(f"open for {right}", f"file.{right}{_BY_PARENT.get(right, '')}", _ACCESS) for right in _OPENS[1].split()),
    _row("open for ACCESS_SYSTEM_SECURITY", "nobody", "MS-DTYP 2.5.3.2", False, NtStatus.PRIVILEGE_NOT_HELD, _SECURITY),
    _row("open for reading, for backup", "file.READ_DATA", _ACCESS, False, privilege=_BACKUP),
    _row("list a folder, for backup", "inner.LIST", _ACCESS, False, privilege=_BACKUP),
    _row("open for writing, for backup", "file.WRITE_DATA", _ACCESS, privilege=_RESTORE),
    _row("create a file, for backup", "folder.ADD_FILE", _NEW, privilege=_RESTORE),
    _row("create a folder, for backup", "folder.ADD_SUBDIRECTORY", _NEW, privilege=_RESTORE),
    _row("set another owner, for backup", "nobody", "MS-FSA 2.1.5.17", True, NtStatus.INVALID_OWNER, _RESTORE),
    _row("set the DACL, for backup", "file.WRITE_DAC", "MS-SMB2 3.3.5.21.3", privilege=_RESTORE),
    _row("delete on close, for backup", DELETE_FILE, _OPEN, privilege=_RESTORE),
    _row("open a stream for WRITE_DATA", "file.WRITE_DATA", _ACCESS),
    _row("create a file", "folder.ADD_FILE", _NEW),
    _row("open or create a file", "folder.ADD_FILE", _NEW),
    _row("overwrite or create a file", "folder.ADD_FILE", _NEW),
    _row("create a folder", "folder.ADD_SUBDIRECTORY", _NEW),
    _row("create a stream", "file.WRITE_DATA", "own decision"),
    _row("open or create a stream", "file.WRITE_DATA", "own decision"),
    _row("create a stream for WRITE_DAC", "file.WRITE_DATA, file.WRITE_DAC", _ACCESS),
    _row("create a stream for WRITE_OWNER", "file.WRITE_DATA, file.WRITE_OWNER", _ACCESS),
    _row("create a stream, deleted on close", f"file.WRITE_DATA, {DELETE_FILE}", _OPEN),
    _row("create a stream of a folder", "inner.ADD_FILE", "own decision"),
    _row("create a stream of a missing file", "folder.ADD_FILE", _NEW),
    _row("overwrite a file", "file.WRITE_DATA, file.WRITE_EA, file.WRITE_ATTRIBUTES", _ACCESS),
    _row("overwrite a stream", "file.WRITE_DATA, file.WRITE_EA, file.WRITE_ATTRIBUTES", _ACCESS),
    _row("supersede a file", f"file.WRITE_DATA, {DELETE_FILE}", _ACCESS),
    _row("delete on close, with MAXIMUM_ALLOWED", DELETE_FILE, _OPEN),
    _row("delete on close, with DELETE", DELETE_FILE, _OPEN),
    _row("delete a stream on close", DELETE_FILE, _OPEN),
    _row("delete a folder on close", DELETE_INNER, _OPEN),
    _row("set times and attributes", "file.WRITE_ATTRIBUTES", _SET),
    _row("set end of file", "file.WRITE_DATA", _SET),
    _row("set allocation size", "file.WRITE_DATA", _SET),
    _row("set extended attributes", "file.WRITE_EA", _SET),
    _row("set disposition", DELETE_FILE, _SET),
    _row("set disposition, extended", DELETE_FILE, _SET),
    _row("rename into another folder", f"{DELETE_FILE}, there.ADD_FILE", _RENAME),
    _row("rename within the folder", f"{DELETE_FILE}, folder.ADD_FILE", _RENAME),
    _row("rename a folder", f"{DELETE_INNER}, there.ADD_SUBDIRECTORY", _RENAME),
    _row("rename over a file", f"{DELETE_FILE}, there.ADD_FILE, {DELETE_TARGET}", _RENAME),
    _row("rename a stream", DELETE_FILE, _RENAME),
    _row("link", "file.WRITE_ATTRIBUTES, there.ADD_FILE", _LINK),
    _row("link, extended", "file.WRITE_ATTRIBUTES, there.ADD_FILE", _LINK),
    _row("link over a file", f"file.WRITE_ATTRIBUTES, there.ADD_FILE, {DELETE_TARGET}", _LINK),
    _row("set the owner", "file.WRITE_OWNER", "MS-SMB2 3.3.5.21.3"),
    _row("set the group", "file.WRITE_OWNER", "MS-SMB2 3.3.5.21.3"),
    _row("set the mandatory label", "file.WRITE_OWNER", "MS-SMB2 3.3.5.21.3"),
    _row("set the DACL", "file.WRITE_DAC", "MS-SMB2 3.3.5.21.3"),
    _row("set resource attributes", "file.WRITE_DAC", "MS-DTYP 2.4.7"),
    _row("set the central access policy", "nobody", "MS-DTYP 2.4.7", True, NtStatus.PRIVILEGE_NOT_HELD, _SECURITY),
    _row("set the SACL", "nobody", "MS-SMB2 3.3.5.21.3", True, NtStatus.PRIVILEGE_NOT_HELD, _SECURITY),
    _row("query owner, group and DACL", "file.READ_CONTROL", "MS-SMB2 3.3.5.20.3", False),
    _row("query the SACL", "nobody", "MS-SMB2 3.3.5.20.3", False, NtStatus.PRIVILEGE_NOT_HELD, _SECURITY),
    _row("query extended attributes", "file.READ_EA", "MS-SMB2 3.3.5.20.1", False),
    _row("query times and attributes", "file.READ_ATTRIBUTES or folder.LIST", "MS-SMB2 3.3.5.20.1", False),
    _row("list a folder", "inner.LIST", "MS-SMB2 3.3.5.18", False),
    _row("read", "file.READ_DATA or file.EXECUTE", "MS-SMB2 3.3.5.12", False),
    _row("write", "file.WRITE_DATA or file.APPEND_DATA", "MS-SMB2 3.3.5.13"),
    _row("append", "file.WRITE_DATA or file.APPEND_DATA", "MS-SMB2 3.3.5.13"),
    _row("flush", "file.WRITE_DATA or file.APPEND_DATA", "MS-SMB2 3.3.5.11"),
    _row(
        "lock",
        "file.READ_DATA or file.WRITE_DATA or file.APPEND_DATA or file.EXECUTE",
        "MS-SMB2 3.3.5.14",
        False,
    ),
    _row("watch a folder", "inner.LIST", "MS-SMB2 3.3.5.19", False),
    _row("query allocated ranges", "file.READ_DATA", _FSCTL, False),
    _row("set sparse", "file.WRITE_DATA or file.WRITE_ATTRIBUTES or file.APPEND_DATA", _FSCTL),
    _row("set zero data", "file.WRITE_DATA", _FSCTL),
    _row("trim", "file.WRITE_DATA", _FSCTL),
    _row("get a token (OFFLOAD_READ)", "file.READ_DATA", "MS-FSCC 2.3.41", False),
    _row("write by a token (OFFLOAD_WRITE)", "file.WRITE_DATA", "MS-FSCC 2.3.43"),
    _row("set a reparse point", "file.WRITE_DATA or file.WRITE_ATTRIBUTES", _FSCTL),
    _row("set compression", "file.WRITE_DATA", _FSCTL),
    _row(
        "copy chunks from another file",
        "target.READ_DATA or target.EXECUTE, file.READ_DATA, file.WRITE_DATA or file.APPEND_DATA",
        "MS-SMB2 3.3.5.15.6",
    ),
    _row(
        "copy chunks to the end, write only",
        "target.READ_DATA or target.EXECUTE, file.WRITE_DATA or file.APPEND_DATA",
        "MS-SMB2 3.3.5.15.6",
    ),
)
assert len({row.operation for row in TABLE}) == len(TABLE)


def _shown(need: Need) -> str:
    return " or ".join(f"{right.name} on {right.object}" for right in need) if need else "nobody has it"


def as_markdown() -> str:
    lines = ["| operation | needs | read-only share | otherwise | rule |", "|---|---|---|---|---|"]
    for row in TABLE:
        needs = "; ".join(_shown(need) for need in row.needs if need or not row.privilege)
        if row.privilege:
            needs = f"{needs} or {row.privilege}" if needs else row.privilege
        allowed = "refused" if row.changes or (() in row.needs and not row.privilege) else "allowed"
        lines.append(f"| {row.operation} | {needs} | {allowed} | {row.refusal.name} | {row.section} |")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + as_markdown() + END + rest.split(END)[1]


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page_with_table(PAGE.read_text()))

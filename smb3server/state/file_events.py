"""What clients do with files, for the audit of their share (``state.audit``) and for the log at the level debug.

Callers look first whether the share has an audit: without one none of these functions is called.
"""

from __future__ import annotations

from smb3server.access import tokens
from smb3server.access.auditing import audited_access
from smb3server.access.check import Token
from smb3server.backends.base import Path
from smb3server.process.log_lines import printable
from smb3server.state import audit, events
from smb3server.state.objects import Connection, Open, TreeConnect
from smb3server.state.share import Share
from smb3server.wire.create import Access, CreateAction
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus

DENIALS = frozenset(
    (
        NtStatus.ACCESS_DENIED,
        NtStatus.PRIVILEGE_NOT_HELD,
        NtStatus.CANNOT_DELETE,
        NtStatus.MEDIA_WRITE_PROTECTED,
        NtStatus.INVALID_OWNER,
    )
)
"""Statuses of requests that the rights of a user do not allow."""
MAX_PATH = 4096
"""Characters of a path that are recorded."""


def _shown(path: Path, stream: str = "") -> str:
    name = "/".join(path)
    return printable(f"{name}:{stream}" if stream else name, MAX_PATH)


def _record(opened: Open, kind: str, path: Path | None = None, result: str = "success", **more: object) -> None:
    """Record an event of an open's file. ``path``: None means the name that it was opened with."""
    share = opened.tree.share
    if share.audit is None:
        return
    stream = opened.file.stream if opened.file is not None else ""
    shown = _shown(opened.path if path is None else path, stream)
    fields = {**events.of_session(opened.session), "share": share.name, "path": shown, **more}
    audit.record(share.audit, kind, fields, result)


def access_names(mask: int) -> list[str]:
    """Return the names of the rights in an access mask, and what has no name as a number."""
    names = [entry.name.lower() for entry in Access if entry.name is not None and mask & entry]
    rest = mask & ~sum(Access)
    return [*names, f"0x{rest:08x}"] if rest else names


def opened(opened: Open) -> None:
    """A CREATE has opened or made a file or a folder."""
    _record(
        opened,
        audit.CREATE if opened.create_action == CreateAction.CREATED else audit.OPEN,
        folder=opened.is_directory,
        access=access_names(opened.granted_access),
        action=CreateAction(opened.create_action).name.lower(),
        delete_on_close=opened.delete_on_close,
    )


def written(opened: Open) -> None:
    """Data is written through an open for the first time."""
    _record(opened, audit.WRITE)


def deleted(opened: Open, path: Path, error: OSError | None = None) -> None:
    """A file or folder was deleted with the close of ``opened``. ``error``: it could not be."""
    result = "success" if error is None else error.strerror or str(error)
    _record(opened, audit.DELETE, path, result, folder=opened.is_directory)


def emptied(share: Share, path: Path, reason: str, size: int) -> None:
    """The server itself has removed a file from the recycle folder. ``reason``: "age" or "room". ``size``: bytes."""
    if share.audit is not None:
        fields: events.Fields = {"share": share.name, "path": _shown(path), "recycled": reason, "size": size}
        audit.record(share.audit, audit.DELETE, {**fields, "folder": False}, "success")


def renamed(opened: Open, old: Path, new: Path, link: bool = False) -> None:
    """A file or folder has a new name, or one more (``link``)."""
    _record(opened, audit.RENAME, old, new_path=_shown(new), link=link)


def permissions_changed(opened: Open, parts: int) -> None:
    """The security descriptor of a file has changed. ``parts``: SECURITY_INFORMATION. [MS-DTYP 2.4.7]"""
    _record(opened, audit.PERMISSION, security_information=f"0x{parts:08x}")


def by_sacl(
    tree: TreeConnect,
    name: tuple[Path, str],
    descriptor: bytes | None,
    token: Token,
    access: int,
    status: int = 0,
    operation: str = "open",
) -> None:
    """A user has got or was refused access to a file, or has deleted it: record it if the file's SACL asks for that.
    [MS-DTYP 2.5.3.2]

    ``name``: path and stream. ``descriptor``: the stored one. ``access``: what was granted, or asked for in vain.
    """
    share = tree.share.audit
    if share is None or audit.SACL not in share.kinds or descriptor is None:
        return
    found = tokens.parsed(descriptor)
    rights = audited_access(found, token, access, not status) if found is not None else 0
    if rights:
        fields: events.Fields = {
            **events.of_session(tree.session),
            "share": tree.share.name,
            "path": _shown(*name),
            "operation": operation,
            "access": access_names(rights),
        }
        case = "delete" if operation == "delete" else ""
        audit.record(share, audit.SACL, fields, events.status_name(status) if status else "success", case)


def denied(tree: TreeConnect, connection: Connection, command: int, path: str, status: int, asked: int = 0) -> None:
    """A request was refused for lack of rights. ``asked``: the access that a CREATE asked for."""
    share = tree.share.audit
    if share is None:
        return
    fields: events.Fields = {
        **events.of_session(tree.session, connection),
        "share": tree.share.name,
        "path": printable(path, MAX_PATH),
        "command": Command(command).name.lower(),
    }
    if asked:
        fields["access"] = access_names(asked)
    audit.record(share, audit.DENIED, fields, events.status_name(status))

"""Which changes of a folder are watched, and their names. [MS-SMB2 2.2.35, MS-FSCC 2.7.1]"""

from __future__ import annotations

from smb3server.wire.change_notify import Action, NotifyFilter

WATCHED = int(
    NotifyFilter.FILE_NAME
    | NotifyFilter.DIR_NAME
    | NotifyFilter.ATTRIBUTES
    | NotifyFilter.SIZE
    | NotifyFilter.LAST_WRITE
    | NotifyFilter.CREATION
)
ACTIONS: dict[int, str] = {
    Action.ADDED: "added",
    Action.REMOVED: "removed",
    Action.MODIFIED: "modified",
    Action.RENAMED_OLD_NAME: "renamed_from",
    Action.RENAMED_NEW_NAME: "renamed_to",
}

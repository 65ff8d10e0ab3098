"""Mirrors between a folder of this machine and one of a share, for tests: the call, what was told, what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smb3server.client import connect
from smb3server.client.mirror import Event, MirrorOptions, Totals, copy_all
from smb3server.client.places import LocalPlace, Place, SharePlace
from smb3server.client.transfers import Progress
from tests.lab.remote import PASSWORD, run


class Ears:
    """Hears what a mirror does."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def begin(self, path: str, size: int) -> Progress:
        return lambda done, size: None

    def event(self, event: Event) -> None:
        self.events.append(event)

    def said(self, action: str) -> list[str]:
        """The names of an action's events."""
        return [event.path.rpartition("/")[2] for event in self.events if event.action == action]

    @property
    def texts(self) -> str:
        """What was said, as one text."""
        return "\n".join(event.text for event in self.events)


def mirror(
    url: str, local: Path, *, up: bool, base: str = "test", password: str = PASSWORD, **options: Any
) -> tuple[Totals, Ears]:
    """Make the share's folder the copy of ``local``, or the other way round."""
    ears = Ears()

    async def main() -> Totals:
        async with connect(url, password=password, rdma="off") as share:
            places: list[Place] = [LocalPlace(local), SharePlace(share, base)]
            source, target = places if up else places[::-1]
            root = await source.look("")
            assert root is not None
            how = MirrorOptions(**({"recursive": True, "only_changed": True, "mirror": True} | options))
            return await copy_all([(source, root, target, "")], how, ears)

    return run(main), ears


def tree(root: Path) -> dict[str, object]:
    """What is below a folder: content and time of files, the time of folders."""
    return {
        str(path.relative_to(root)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns // 100)
        for path in root.rglob("*")
        if not path.is_symlink()
    }

"""Which shares are announced for Time Machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

from smb3server.backends.local.backend import LocalBackend
from smb3server.backends.local.macos import MacBackend
from tests.lab.serving import serving, session_of, status_of_connect
from tools.support import own_user


def share(folder: Path, name: str, more: str = "") -> str:
    (folder / name).mkdir(exist_ok=True)
    return f'[[share]]\nname = "{name}"\npath = "{folder / name}"\n{own_user.LINE}{more}\n'


def test_shares_for_backups_come_and_go_with_a_reload(tmp_path: Path) -> None:
    user = '[[user]]\nname = "carol"\npassword = "pw"\n'
    (tmp_path / "homes" / "carol").mkdir(parents=True)
    homes = f'[homes]\npath = "{tmp_path}/homes/{{user}}"\ntime_machine = true\n'
    text = share(tmp_path, "data") + share(tmp_path, "backups", "time_machine = true")
    text += share(tmp_path, "secret", "time_machine = true\nhidden = true") + homes + user

    async def body() -> None:
        async with serving(tmp_path, text) as service, session_of(service, "carol") as session:
            changes: list[int] = []
            service.shares.on_change = lambda: changes.append(1)
            assert service.shares.for_backups() == ["backups"]
            assert type(service.server.share_list["data"].backend) is LocalBackend
            assert type(service.server.share_list["backups"].backend) is MacBackend
            # The name of a home is that of a user.
            assert await status_of_connect(session, "carol") == 0
            assert service.shares.for_backups() == ["backups"]
            file = tmp_path / "smb3server.toml"
            file.write_text(text.replace('name = "data"', 'name = "data"\nmacos = true\ntime_machine = true'))
            await service.reload()
            assert changes and sorted(service.shares.for_backups()) == ["backups", "data"]
            assert type(service.server.share_list["data"].backend) is MacBackend
            file.write_text(text.replace("time_machine = true", "macos = true"))
            await service.reload()
            assert service.shares.for_backups() == []

    asyncio.run(body())

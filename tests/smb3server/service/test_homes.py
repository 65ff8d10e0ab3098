"""Who has a home."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from pathlib import Path

import pytest

from smb3server.auth.users import Account, nt_hash
from smb3server.backends.base import User
from smb3server.wire.status import NtStatus
from tests.lab.serving import READ, needs_root, serving, session_of, status_of_connect, status_of_open

MAIL = pwd.getpwnam("mail")

pytestmark = needs_root


def test_an_account_made_from_afar_has_no_home(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An administrator by SMB may give it any name. He would act as the user of the host who has the home."""
    home = tmp_path / "homes" / "mail"
    home.mkdir(parents=True)
    (home / "secret").touch(0o600)
    home.chmod(0o700)
    for path in (home, home / "secret"):
        os.chown(path, MAIL.pw_uid, MAIL.pw_gid)
    data = tmp_path / "data"
    data.mkdir()
    text = f'[[share]]\nname = "data"\npath = "{data}"\n[homes]\npath = "{tmp_path}/homes/{{user}}"\n'
    text += '[[user]]\nname = "carol"\npassword = "pw"\n'

    async def body() -> None:
        async with serving(tmp_path, text) as service:
            users = service.server.users
            users.add(Account("mail", nt_hash("pw"), stored=True))
            async with session_of(service, "mail") as session:
                assert await status_of_connect(session, "mail") == NtStatus.BAD_NETWORK_NAME
            # As somebody on this machine says it.
            users.add(Account("mail", nt_hash("pw"), User(MAIL.pw_uid, MAIL.pw_gid), stored=True))
            async with session_of(service, "mail") as session:
                assert await status_of_open(await session.tree_connect("mail"), "secret", READ) == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
    assert "remedy: smb3server user set mail --unix-user NAME" in caplog.text


def test_an_account_of_the_configuration_has_one(tmp_path: Path) -> None:
    (tmp_path / "homes" / "carol").mkdir(parents=True)
    text = f'[homes]\npath = "{tmp_path}/homes/{{user}}"\n[[user]]\nname = "carol"\npassword = "pw"\n'

    async def body() -> None:
        async with serving(tmp_path, text) as service, session_of(service, "carol") as session:
            assert await status_of_connect(session, "carol") == 0

    asyncio.run(body())

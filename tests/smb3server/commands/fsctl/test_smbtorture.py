"""FSCTLs of smbtorture's own: which of them is run without a session, and that none is run unless it is configured."""

from __future__ import annotations

import pytest

from smb3server.commands.fsctl.smbtorture import FORCE_UNACKED_TIMEOUT, READ_RESPONSE_BODY_PADDING8
from smb3server.settings.server import Settings
from smb3server.wire.header import Command
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus
from tests.lab.wire_client import Harness, drive, ioctl_body


@pytest.mark.parametrize("configured", [True, False])
def test_one_of_them_needs_no_session(configured: bool) -> None:
    async def test(harness: Harness) -> None:
        client = await harness.connect()
        await client.negotiate()
        (connection,) = harness.server.connection_list
        for code in (READ_RESPONSE_BODY_PADDING8, int(Fsctl.QUERY_NETWORK_INTERFACE_INFO)):
            reply = await client.call(Command.IOCTL, ioctl_body(code))
            assert reply.status == NtStatus.USER_SESSION_DELETED
        assert not connection.forced_stall
        reply = await client.call(Command.IOCTL, ioctl_body(FORCE_UNACKED_TIMEOUT))
        assert reply.status == (NtStatus.SUCCESS if configured else NtStatus.USER_SESSION_DELETED)
        assert connection.forced_stall is configured

    drive(test, Settings(test_fsctls=configured))

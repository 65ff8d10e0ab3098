"""Asking a server where a path of a namespace lies. [MS-DFSC 3.1.4.2, MS-SMB2 3.2.4.20.3]"""

from __future__ import annotations

from smb3server.client.protocol.session import ClientSession
from smb3server.wire import dfs, ioctl
from smb3server.wire.header import Command
from smb3server.wire.status import NtStatus

_SIZES = (4096, 0x10000)
"""Bytes of the answer that are asked for, one after the other."""
_NO_FILE = 0xFFFFFFFFFFFFFFFF


async def ask_referral(session: ClientSession, path: str) -> dfs.Referral:
    """Return where ``\\\\server\\share\\folder`` lies; ``path`` has one leading backslash.

    Raises ``ServerError``, as NOT_FOUND for a path of no namespace, and ``DecodeError``."""
    request = dfs.pack_request(dfs.ReferralRequest(dfs.HIGHEST_VERSION, path))
    tree = await session.tree_connect("IPC$")
    try:
        for size in _SIZES:
            record = ioctl.IoctlRequest(
                ctl_code=ioctl.Fsctl.DFS_GET_REFERRALS,
                persistent=_NO_FILE,
                volatile=_NO_FILE,
                max_output_response=min(size, session.client.negotiated.max_transact_size),
                flags=ioctl.IOCTL_IS_FSCTL,
            )
            # More than the answer that fits is asked for again.
            last = size == _SIZES[-1]
            accept = (NtStatus.SUCCESS,) if last else (NtStatus.SUCCESS, NtStatus.BUFFER_OVERFLOW)
            body = [ioctl.build_ioctl_request(record, request)]
            reply = await tree.call(Command.IOCTL, body, payload=record.max_output_response, accept=accept)
            try:
                if reply.status == NtStatus.SUCCESS:
                    return dfs.parse_referral(bytes(ioctl.parse_ioctl_response(reply.message)[1]))
            finally:
                reply.release()
        raise AssertionError("the last size accepts no overflow")
    finally:
        if tree.client.closed is None:
            await tree.disconnect()

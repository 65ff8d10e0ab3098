"""SmbdDataTransfer: messages of an established connection. [MS-SMBD 3.1.5.4, 3.1.5.8]"""

from __future__ import annotations

import os

from smb3server.tools.conformance.registry import case
from smb3server.tools.conformance.trial import Session, Trial

SUITE = "SmbdDataTransfer"
SMALL, MODERATE = 500, 65536
"""Bytes of a WRITE request, as in Microsoft's suite."""
WRITE_HEADER = 64 + 48
"""Bytes of a WRITE request before its data. [MS-SMB2 2.2.1, 2.2.21]"""
MAX = 0xFFFFFFFF


async def write_and_check(trial: Trial, session: Session, size: int) -> None:
    """Write with a request of ``size`` bytes, and require that the file has the data."""
    file = await trial.create(session)
    data = os.urandom(size - WRITE_HEADER)
    written = await session.tree.write(file, 0, data)
    trial.require(written == len(data), f"{written} of {len(data)} bytes were written")
    sizes, session.conversation.sizes = session.conversation.sizes, lambda: iter(())
    trial.require(await session.tree.read(file, 0, len(data)) == data, "the file has other data than was written")
    session.conversation.sizes = sizes
    await session.tree.close(file)


@case(SUITE, "BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData", "MS-SMBD 3.1.5.8")
async def small(trial: Trial) -> None:
    """A WRITE of 500 bytes in one message is carried out."""
    await write_and_check(trial, await trial.log_on(), SMALL)


@case(SUITE, "SmbdDataTransfer_UncompletedMessage", "MS-SMBD 3.1.5.8")
async def uncompleted(trial: Trial) -> None:
    """A message of less than 20 bytes terminates the connection."""
    peer = await trial.negotiated()
    peer.send(bytes([10, 0, 1]).ljust(19, b"\0"), "a Data Transfer message without its last byte, 19 bytes")
    await trial.terminated(peer, "a message of 19 bytes")

"""Smb2RdmaTransformNegotiation: SMB2_RDMA_TRANSFORM_CAPABILITIES. [MS-SMB2 2.2.3.1.6, 2.2.4.1.6, 3.3.5.4]"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence

from smb3server.client.protocol import Client
from smb3server.lab.conformance.conversation import Conversation
from smb3server.lab.conformance.data_channel import status_name
from smb3server.lab.conformance.registry import case
from smb3server.lab.conformance.transforms import ENCRYPTION, SIGNING, pack_capabilities
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import NotApplicable, Violation
from smb3server.wire.header import HEADER_SIZE, Command
from smb3server.wire.negotiate import (
    NEGOTIATE_REQUEST,
    NEGOTIATE_RESPONSE,
    Capability,
    ContextType,
    Dialect,
    NegotiateRequest,
    SecurityMode,
    contexts_of,
    numbers_of,
    pack_contexts,
)
from smb3server.wire.rdma_transform import RDMA_TRANSFORM_CAPABILITIES
from smb3server.wire.status import NtStatus

SUITE = "Smb2RdmaTransformNegotiation"
SECTION = "MS-SMB2 3.3.5.4"
BOTH = pack_capabilities((ENCRYPTION, SIGNING))
_PREAUTH = struct.pack("<HHH", 1, 32, 1) + os.urandom(32)
_CIPHERS = struct.pack("<HH", 1, 2)


async def answer_to(trial: Trial, *data: bytes, dialect: int = Dialect.SMB_3_1_1) -> tuple[int, list[bytes]]:
    """Negotiate with a context of RDMA transforms for each of ``data``. Return the status, and the data of each such
    context in the response."""
    peer = await trial.negotiated(credits_requested=32)
    conversation = Conversation(peer, 32, 32)
    client = Client(conversation)
    dialects = struct.pack("<H", dialect)
    kinds = [(ContextType.PREAUTH_INTEGRITY, _PREAUTH), (ContextType.ENCRYPTION, _CIPHERS)]
    contexts = [*kinds, *((ContextType.RDMA_TRANSFORM, one) for one in data)]
    start = HEADER_SIZE + NEGOTIATE_REQUEST.size + len(dialects)
    padding = -start % 8
    record = NegotiateRequest(
        dialect_count=1,
        security_mode=int(SecurityMode.SIGNING_ENABLED),
        capabilities=int(Capability.LARGE_MTU | Capability.ENCRYPTION),
        client_guid=os.urandom(16),
        context_offset=start + padding if dialect == Dialect.SMB_3_1_1 else 0,
        context_count=len(contexts) if dialect == Dialect.SMB_3_1_1 else 0,
    )
    body = NEGOTIATE_REQUEST.pack(record) + dialects + bytes(padding) + pack_contexts(contexts)
    trial.note(f"-> NEGOTIATE {dialect:#06x}, RDMA transform contexts: {[one.hex() for one in data]}")
    async with asyncio.timeout(trial.timing.patience):
        started = await client.start(Command.NEGOTIATE, [body])
        reply = await started.future
    if reply.status != NtStatus.SUCCESS:
        trial.note(f"<- {status_name(reply.status)}")
        return reply.status, []
    response = NEGOTIATE_RESPONSE.parse(reply.message)
    # The list of contexts has the same form in request and response.
    where = NegotiateRequest(context_offset=response.context_offset, context_count=response.context_count)
    listed = contexts_of(reply.message, where) if dialect == Dialect.SMB_3_1_1 else []
    found = [bytes(one) for kind, one in listed if kind == ContextType.RDMA_TRANSFORM]
    trial.note(f"<- STATUS_SUCCESS, RDMA transform contexts: {[one.hex() for one in found]}")
    return reply.status, found


def ids_of(trial: Trial, found: Sequence[bytes]) -> tuple[int, ...]:
    """Return the ids of the one context of a response."""
    trial.require(len(found) == 1, f"the response has {len(found)} contexts of RDMA transforms, not 1")
    ids = numbers_of(found[0], RDMA_TRANSFORM_CAPABILITIES.size)
    trial.require(ids, "TransformCount of the response is 0")
    trial.require(found[0][2:8] == bytes(6), "Reserved1 or Reserved2 of the response is not 0")
    return ids


async def need_transforms(trial: Trial) -> None:
    """Raise ``NotApplicable`` if the server ignores the context, as one without transforms must."""
    status, found = await answer_to(trial, BOTH)
    if status == NtStatus.SUCCESS and not found:
        raise NotApplicable("the server ignores SMB2_RDMA_TRANSFORM_CAPABILITIES: it has no RDMA transforms")


@case(SUITE, f"{SUITE}_Common", "MS-SMB2 3.3.5.4, 2.2.4.1.6")
async def common(trial: Trial) -> None:
    """The response has the transforms that both have, each once, and none that was not offered."""
    await need_transforms(trial)
    for offered in ((ENCRYPTION, SIGNING), (SIGNING,), (ENCRYPTION,), (0x7777, SIGNING, 0x1234)):
        status, found = await answer_to(trial, pack_capabilities(offered))
        trial.require(status == NtStatus.SUCCESS, f"the answer is {status_name(status)}")
        ids = ids_of(trial, found)
        if ids == (0,):
            continue
        trial.require(set(ids) <= set(offered), f"the response has {ids}, and {tuple(offered)} were offered")
        trial.require(len(set(ids)) == len(ids), f"the response has an id twice: {ids}")


@case(SUITE, f"{SUITE}_NothingCommon", SECTION)
async def nothing_common(trial: Trial) -> None:
    """To a client that offers unknown transforms alone, the response has SMB2_RDMA_TRANSFORM_NONE alone."""
    await need_transforms(trial)
    status, found = await answer_to(trial, pack_capabilities((0x7777,)))
    trial.require(status == NtStatus.SUCCESS, f"the answer is {status_name(status)}")
    ids = ids_of(trial, found)
    trial.require(ids == (0,), f"the response has {ids}, not SMB2_RDMA_TRANSFORM_NONE alone")


@case(SUITE, f"{SUITE}_NotOffered", SECTION)
async def not_offered(trial: Trial) -> None:
    """To a client that offers no transforms, and to one with dialect 3.0.2, the response has no such context."""
    for dialect in (Dialect.SMB_3_1_1, Dialect.SMB_3_0_2):
        status, found = await answer_to(trial, dialect=dialect)
        trial.require(status == NtStatus.SUCCESS, f"the answer is {status_name(status)}")
        trial.require(not found, "the response has RDMA transforms, which the client has not offered")


async def _refused(trial: Trial, *data: bytes) -> None:
    await need_transforms(trial)
    status, _ = await answer_to(trial, *data)
    if status != NtStatus.INVALID_PARAMETER:
        raise Violation(f"the answer is {status_name(status)}, not STATUS_INVALID_PARAMETER")


@case(SUITE, f"{SUITE}_CountZero", SECTION)
async def count_zero(trial: Trial) -> None:
    """A context whose TransformCount is 0 has NEGOTIATE fail with STATUS_INVALID_PARAMETER."""
    await _refused(trial, pack_capabilities((ENCRYPTION,), count=0))


@case(SUITE, f"{SUITE}_TooShort", SECTION)
async def too_short(trial: Trial) -> None:
    """A context that is shorter than its structure has NEGOTIATE fail with STATUS_INVALID_PARAMETER."""
    for data in (b"", BOTH[:7], BOTH[:8], BOTH[:-1]):
        await _refused(trial, data)


@case(SUITE, f"{SUITE}_Twice", SECTION)
async def twice(trial: Trial) -> None:
    """Two contexts of RDMA transforms have NEGOTIATE fail with STATUS_INVALID_PARAMETER."""
    await _refused(trial, BOTH, BOTH)

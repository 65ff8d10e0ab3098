"""What the cases of RDMA transforms share. Microsoft's cases are in ``rdma_encryption`` and ``rdma_signing``, and the
rules that they leave out in ``rdma_transform_rules``. [MS-SMB2 2.2.43, 3.3.5.12, 3.3.5.13]

Where Microsoft's suite and the text differ, the text decides:

* The suite's WRITEs with both structures carry two of the encryption kind, or one with a wrong count. Here there is one
  of each kind.
* Its 64 WRITEs put all earlier chains in front of the next one's descriptors. Here each request has one chain.
* It signs a payload with the nonce of the message. 2.2.43.1 forbids using one twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smb3server.client.protocol.negotiation import Offer
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.lab.conformance.data_channel import Answer, DataFile, Read, Write, check_write, open_on, status_name
from smb3server.lab.conformance.transforms import (
    ENCRYPTION,
    SIGNING,
    Crypto,
    nonce_size,
    pack_chain,
    payload_nonce,
    protect,
    unprotect,
)
from smb3server.lab.conformance.trial import Trial
from smb3server.lab.conformance.verdict import NotApplicable
from smb3server.lab.content import content_of, other_content
from smb3server.wire.negotiate import Dialect
from smb3server.wire.rdma_transform import RdmaTransformId
from smb3server.wire.read_write import READ_DATA_OFFSET, Channel, ReadResponseFlags
from smb3server.wire.status import NtStatus

TRANSFORM = Channel.RDMA_TRANSFORM
SIZE = 16384
OPERATIONS = 64

Shape = Callable[[Crypto, bytes], bytes]
"""Returns the channel information of a WRITE for a transform and the descriptors."""


def one_chain(crypto: Crypto, descriptors: bytes) -> bytes:
    """Return a chain that keeps all rules."""
    return pack_chain([crypto], descriptors)


async def open_protected(
    trial: Trial,
    kind: int,
    *,
    ids: Sequence[int] | None = None,
    cipher: Cipher = Cipher.AES_128_GCM,
    signing: SigningAlgorithm = SigningAlgorithm.AES_CMAC,
) -> DataFile:
    """Open a file on a connection that has negotiated ``ids``, which is ``kind`` by default. Requests are encrypted, or
    signed, as ``kind`` says. Raises ``NotApplicable`` if the server does not negotiate all this."""
    wanted = (kind,) if ids is None else tuple(ids)
    if not wanted:
        await _need_transforms(trial)
    # A server without the signing algorithm chooses AES-CMAC, which has to be offered then. [MS-SMB2 3.3.5.4]
    algorithms = dict.fromkeys((signing, SigningAlgorithm.AES_CMAC))
    offer = Offer(ciphers=(cipher,), signing_algorithms=tuple(algorithms), rdma_transforms=wanted)
    session = await trial.log_on(dialects=(Dialect.SMB_3_1_1,), offer=offer)
    negotiated = session.client.negotiated
    missing = [RdmaTransformId(each).name for each in wanted if each not in negotiated.rdma_transforms]
    if missing:
        raise NotApplicable(f"the server does not negotiate SMB2_RDMA_TRANSFORM_{missing[0]}")
    if kind == ENCRYPTION and negotiated.cipher != cipher:
        raise NotApplicable(f"the server does not negotiate {cipher.name}")
    if kind == SIGNING and negotiated.signing_algorithm != signing:
        raise NotApplicable(f"the server does not negotiate {signing.name}")
    session.session.encrypt, session.session.sign = kind == ENCRYPTION, kind == SIGNING
    return await open_on(trial, session)


async def _need_transforms(trial: Trial) -> None:
    """Raise ``NotApplicable`` if the server negotiates no transforms with a client that offers them."""
    session = await trial.log_on(dialects=(Dialect.SMB_3_1_1,), offer=Offer(rdma_transforms=(ENCRYPTION, SIGNING)))
    if not session.client.negotiated.rdma_transforms:
        raise NotApplicable("the server negotiates no RDMA transforms")


def check_protected_read(trial: Trial, answer: Answer, count: int) -> None:
    """Require a successful response with transforms, for ``count`` bytes that went by RDMA. [MS-SMB2 3.3.5.12]"""
    trial.require(answer.status == NtStatus.SUCCESS, f"READ failed with {status_name(answer.status)}")
    body = answer.read
    assert body is not None
    trial.require(body.data_offset == READ_DATA_OFFSET, f"DataOffset is {body.data_offset}, not {READ_DATA_OFFSET}")
    trial.require(body.data_remaining == count, f"DataRemaining is {body.data_remaining}, not {count}")
    said = body.flags & ReadResponseFlags.RDMA_TRANSFORM
    trial.require(said, "SMB2_READFLAG_RESPONSE_RDMA_TRANSFORM is not set: the data went unprotected")


async def reads(trial: Trial, file: DataFile, kind: int, operations: int = 1) -> None:
    """Read a file of the largest size in this many operations, and check what protects the data."""
    size = file.largest // operations
    content = content_of(size * operations)
    await file.fill(content)
    nonces: list[bytes] = []
    for at in range(0, len(content), size):
        exposed = file.expose(size)
        answer = await file.read(Read(size, exposed.info, at))
        check_protected_read(trial, answer, size)
        received = bytes(exposed.view)
        expected = content[at : at + size]
        trial.require(kind != ENCRYPTION or received != expected, "the data went by RDMA in the clear")
        trial.require(unprotect(file.session, kind, answer.data, received) == expected, f"the data at {at} is wrong")
        nonces.append(payload_nonce(answer.data))
    check_nonces(trial, file, kind, nonces)


def check_nonces(trial: Trial, file: DataFile, kind: int, payloads: Sequence[bytes]) -> None:
    """Require that no nonce was used twice under the session's key, by payloads or by messages. [MS-SMB2 2.2.43.1]"""
    size = nonce_size(file.session, kind)
    if not size:
        return  # AES-CMAC and HMAC-SHA256 have none
    conversation = file.conversation
    messages = conversation.encrypted_with if kind == ENCRYPTION else conversation.signed_with
    seen: set[bytes] = set()
    for nonce in (*(nonce[:size] for nonce in messages), *payloads):
        trial.require(nonce not in seen, f"the nonce {nonce.hex()} was used twice")
        seen.add(nonce)
    trial.note(f"{len(messages)} messages and {len(payloads)} payloads have {len(seen)} nonces")


async def writes(trial: Trial, file: DataFile, kind: int, operations: int = 1) -> None:
    """Write a file of the largest size in this many operations, and compare it."""
    size = file.largest // operations
    content = content_of(size * operations)
    for at in range(0, len(content), size):
        await write_one(trial, file, kind, content[at : at + size], at)
    trial.require(await file.content(len(content)) == content, "the file has other content than was written")


async def write_one(trial: Trial, file: DataFile, kind: int, payload: bytes, at: int = 0) -> None:
    """Write a payload by RDMA, as the rules say."""
    moved, crypto = protect(file.session, kind, payload)
    exposed = file.expose(len(moved), moved)
    answer = await file.write(Write(len(payload), one_chain(crypto, exposed.info), at, TRANSFORM))
    check_write(trial, answer, len(payload))


async def refuses(
    trial: Trial,
    file: DataFile,
    kind: int,
    shape: Shape,
    status: NtStatus | None = NtStatus.INVALID_PARAMETER,
    change: Callable[[Write], Write] = lambda write: write,
) -> None:
    """Require ``status``, or any failure if it is None, for a WRITE of that shape. It must write nothing."""
    old, payload = content_of(SIZE), other_content(SIZE)
    await file.fill(old)
    moved, crypto = protect(file.session, kind, payload)
    exposed = file.expose(SIZE, moved)
    answer = await file.write(change(Write(SIZE, shape(crypto, exposed.info), channel=TRANSFORM)))
    found = status_name(answer.status)
    if status is None:
        trial.require(answer.status != NtStatus.SUCCESS, "the WRITE succeeded")
    else:
        trial.require(answer.status == status, f"the answer is {found}, not {status_name(status)}")
    trial.require(await file.content(SIZE + 1) == old, "the refused WRITE has changed the file")


async def refused(
    trial: Trial,
    kind: int,
    shape: Shape,
    status: NtStatus = NtStatus.INVALID_PARAMETER,
    ids: Sequence[int] | None = None,
) -> None:
    """Open a file with ``open_protected``, and require what ``refuses`` requires."""
    await refuses(trial, await open_protected(trial, kind, ids=ids), kind, shape, status)

"""How the data of READ and WRITE travels, and its protection where RDMA moves it. [MS-SMB2 3.2.4.6, 3.2.4.7, 3.2.5.11]

Data that RDMA moves is outside the message, whose signature and encryption do not cover it. It travels as its request
does: encrypted, or else signed, each by an RDMA transform. Without that transform it stays in the message.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from smb3server.client.protocol.connection import Requests
from smb3server.client.protocol.messages import Protection, Way
from smb3server.wire.negotiate import Dialect
from smb3server.wire.rdma_transform import CryptoTransform, RdmaTransformId, parse_transforms
from smb3server.wire.read_write import ReadResponse, ReadResponseFlags
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ProtocolError


class Choice(NamedTuple):
    """A way, and why it is not RDMA."""

    way: Way
    why_inline: str = ""
    needs: Way | None = None
    """The way that RDMA would have needed, if a transform is missing for it."""


def choose(client: Requests, session: Protection, tree_id: int, is_pipe: bool) -> Choice:
    """Choose the way of data on a tree. [MS-SMB2 3.2.4.6, 3.2.4.7]

    3.2.4.6 and 3.2.4.7 keep sessions that sign or encrypt off RDMA altogether. That is older than the transforms, which
    would otherwise have no use. Windows and Microsoft's test suite read it as is done here.
    """
    if client.exposed is None:
        return Choice(Way.INLINE, "the transport has no RDMA")
    if client.dialect < Dialect.SMB_3_0:
        return Choice(Way.INLINE, "RDMA needs dialect 3.0")
    if is_pipe:
        return Choice(Way.INLINE, "pipes have no RDMA")
    way, what = Way.RDMA, ""
    if session.encrypts(tree_id):
        way, what = Way.RDMA_ENCRYPTED, "encrypted"
    elif session.sign:
        way, what = Way.RDMA_SIGNED, "signed"
    if way.transform and way.transform not in client.negotiated.rdma_transforms:
        name = way.transform.name.lower()
        return Choice(Way.INLINE, f"messages are {what}, and the RDMA transform for {name} was not negotiated", way)
    return Choice(way)


def expose(
    way: Way, session: Protection, numbers: itertools.count[int], data: memoryview, exposed: memoryview
) -> CryptoTransform | None:
    """Put the data of a WRITE where the server can read it. Return the transform that protects it, or None if it needs
    none. [MS-SMB2 3.2.4.7]

    ``numbers`` are for nonces.
    """
    if (way is Way.RDMA_ENCRYPTED and session.cipher is None) or (way is Way.RDMA_SIGNED and session.signer is None):
        raise ProtocolError("data must be protected, and there is no key", "MS-SMB2 3.2.4.7")
    if way is Way.RDMA_ENCRYPTED and session.cipher is not None:
        # Encrypted elsewhere: clear data must never be where the server, or who knows the token, can read it.
        sealed = memoryview(bytearray(data))
        nonce = session.cipher.new_nonce()
        tag = session.cipher.encrypt_payload(sealed, nonce)
        exposed[:] = sealed
        return CryptoTransform(way.transform, tag, nonce)
    exposed[:] = data
    if way is Way.RDMA_SIGNED and session.signer is not None:
        nonce = session.signer.payload_nonce(next(numbers), from_server=False)
        # What is signed is the copy: the caller's data may change meanwhile.
        return CryptoTransform(way.transform, session.signer.sign_payload(exposed, nonce), nonce)
    return None


def transform_of_response(
    way: Way, session: Protection, response: ReadResponse, data: memoryview, encrypted: bool
) -> CryptoTransform | None:
    """Return the transform of a successful READ response whose data came ``way``; None if it needs none.

    ``data`` is the response's Buffer; ``encrypted`` says how the response travelled. Raises ``DecodeError``, and
    ``StatusError`` if the transform is not the one that this way needs. [MS-SMB2 3.2.5.11]
    """
    has_transform = bool(response.flags & ReadResponseFlags.RDMA_TRANSFORM)
    # A server writes data as it is if nothing was asked to be protected (3.3.5.12). Where something was, data without
    # a transform would be anybody's.
    if has_transform is not bool(way.transform):
        raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE)
    if not has_transform:
        return None
    _, transform, _ = parse_transforms(data)
    if transform.transform_type is not way.transform or encrypted is not (way is Way.RDMA_ENCRYPTED):
        raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE)
    cipher = session.cipher if way is Way.RDMA_ENCRYPTED else None
    if cipher is not None and not cipher.takes(transform.nonce, transform.signature):
        raise StatusError(NtStatus.INVALID_NETWORK_RESPONSE)
    return transform


def reveal(session: Protection, transform: CryptoTransform, payload: memoryview) -> None:
    """Verify a payload, and decrypt it in place if it is encrypted. [MS-SMB2 3.2.5.11]

    The server must have no access to ``payload`` any longer, or it could change what was verified. Raises
    ``StatusError``: INVALID_SIGNATURE, or AUTH_TAG_MISMATCH, for which 3.2.5.11 has no status.
    """
    if transform.transform_type is RdmaTransformId.ENCRYPTION:
        if session.cipher is None or not session.cipher.decrypt_payload(payload, transform.nonce, transform.signature):
            raise StatusError(NtStatus.AUTH_TAG_MISMATCH)
    elif session.signer is None or not session.signer.verify_payload(payload, transform.nonce, transform.signature):
        raise StatusError(NtStatus.INVALID_SIGNATURE)

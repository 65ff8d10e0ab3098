"""RDMA transforms: data of encrypted and signed requests is encrypted and signed on its way by RDMA, too. [MS-SMB2
3.3.5.12, 3.3.5.13]

Data of an encrypted request, session or share never moves by RDMA in the clear, and that of a session that must sign
never without a signature: without the transform for it the request is refused. The section would send it; but clients
that do not support transforms do not ask for it (3.2.4.6, 3.2.4.7). What a client signs of its own accord may move
without a signature.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import Signer
from smb3server.dispatch.request import Request
from smb3server.state.objects import Connection
from smb3server.wire.rdma_transform import CryptoTransform, RdmaTransformId, pack_transforms
from smb3server.wire.status import NtStatus, StatusError

LONG_FROM = 2 << 20
"""Bytes of a payload from which a worker thread encrypts or signs it, with a fast algorithm. The event loop would stand
still for 0.2 ms. Handing it over costs about 0.1 ms."""
LONG_FROM_IF_SLOW = 256 << 10
"""The same with a slow algorithm."""

_ENCRYPTION, _SIGNING = RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING


class Transform(NamedTuple):
    """What is done to the payload of one request. It is used once, because its nonce is."""

    kind: RdmaTransformId
    slow: bool
    run: Callable[[memoryview], bytes]
    """Changes the payload in place. For a READ, returns the chain for the response. For a WRITE, returns nothing, and
    raises ``StatusError`` if the payload is not what the client sent."""

    def apply(self, connection: Connection, payload: memoryview, then: Callable[[bytes | Exception], None]) -> None:
        """Call ``run``, on a worker thread if that takes long. ``then`` is called with the outcome, soon or later.

        The payload must not be used for anything else meanwhile, even if nobody needs the outcome any longer."""
        if len(payload) < (LONG_FROM_IF_SLOW if self.slow else LONG_FROM):
            then(_outcome(partial(self.run, payload)))
            return
        future = connection.loop.run_in_executor(None, self.run, payload)
        future.add_done_callback(lambda future: then(_outcome(future.result)))

    def moves(self, connection: Connection, count: int) -> None:
        """Count ``count`` protected bytes that move by RDMA. Call it when the transport counts them (``Traffic``)."""
        if self.kind is _ENCRYPTION:
            connection.rdma_bytes_encrypted += count
        else:
            connection.rdma_bytes_signed += count


def _outcome(work: Callable[[], bytes]) -> bytes | Exception:
    try:
        return work()
    except Exception as error:
        return error


def for_read(request: Request) -> Transform | None:
    """Return what protects the data that a READ sends by RDMA. None: nothing does. [MS-SMB2 3.3.5.12]

    Raises ``StatusError``, INVALID_PARAMETER, if the data must be protected and the client does not support that."""
    ids = request.connection.rdma_transform_ids
    if _must_encrypt(request):
        cipher = _cipher(request)
        if _ENCRYPTION not in ids or cipher is None:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        return Transform(_ENCRYPTION, cipher.slow, partial(_encrypt, cipher, cipher.new_nonce()))
    signer = _signer(request)
    if _SIGNING not in ids or signer is None:
        _check_may_be_clear(request)
        return None
    nonce = signer.payload_nonce(request.header.message_id, from_server=True)
    return Transform(_SIGNING, signer.slow, partial(_sign, signer, nonce))


def for_write(request: Request, crypto: CryptoTransform | None) -> Transform | None:
    """Return what checks the data that a WRITE fetches by RDMA. None: nothing does. [MS-SMB2 3.3.5.13]

    ``crypto``: what the request says of it, if anything. Raises ``StatusError``: INVALID_PARAMETER if it is missing,
    was not negotiated, or does not suit the protection of the request; AUTH_TAG_MISMATCH if tag or nonce have a wrong
    length. The section fetches the data before it looks at these, and answers the same."""
    if crypto is None:
        _check_may_be_clear(request)
        return None
    if crypto.transform_type in request.connection.rdma_transform_ids:
        cipher, signer = _cipher(request), _signer(request)
        if crypto.transform_type is _ENCRYPTION and cipher is not None:
            if not cipher.takes(crypto.nonce, crypto.signature):
                raise StatusError(NtStatus.AUTH_TAG_MISMATCH)
            return Transform(_ENCRYPTION, cipher.slow, partial(_decrypt, cipher, crypto))
        if crypto.transform_type is _SIGNING and signer is not None:
            return Transform(_SIGNING, signer.slow, partial(_verify, signer, crypto))
    raise StatusError(NtStatus.INVALID_PARAMETER)


def _must_encrypt(request: Request) -> bool:
    session, tree = request.session, request.tree
    return request.encrypted or (session is not None and (session if tree is None else tree).encrypt_data)


def _check_may_be_clear(request: Request) -> None:
    if _must_encrypt(request) or (request.session is not None and request.session.signing_required):
        raise StatusError(NtStatus.INVALID_PARAMETER)


def _cipher(request: Request) -> SessionCipher | None:
    """Return what encrypts the payload of an encrypted request. None for any other."""
    return request.session.cipher if request.encrypted and request.session is not None else None


def _signer(request: Request) -> Signer | None:
    """Return what signs the payload of a request that is signed and not encrypted. None for any other.

    It has the key that signs the channel's messages. [MS-SMB2 3.3.4.1.1]"""
    if not request.signed or request.session is None or _must_encrypt(request):
        return None
    return request.session.signer_on(request.connection)


def _encrypt(cipher: SessionCipher, nonce: bytes, payload: memoryview) -> bytes:
    return pack_transforms(CryptoTransform(_ENCRYPTION, cipher.encrypt_payload(payload, nonce), nonce))


def _sign(signer: Signer, nonce: bytes, payload: memoryview) -> bytes:
    return pack_transforms(CryptoTransform(_SIGNING, signer.sign_payload(payload, nonce), nonce))


def _decrypt(cipher: SessionCipher, crypto: CryptoTransform, payload: memoryview) -> bytes:
    """Decrypt a payload. Raises ``StatusError``: AUTH_TAG_MISMATCH.

    The decrypted data is as long as the fetched data, which is RemainingBytes: so it never is BAD_DATA."""
    if not cipher.decrypt_payload(payload, crypto.nonce, crypto.signature):
        raise StatusError(NtStatus.AUTH_TAG_MISMATCH)
    return b""


def _verify(signer: Signer, crypto: CryptoTransform, payload: memoryview) -> bytes:
    if not signer.verify_payload(payload, crypto.nonce, crypto.signature):
        raise StatusError(NtStatus.INVALID_SIGNATURE)
    return b""

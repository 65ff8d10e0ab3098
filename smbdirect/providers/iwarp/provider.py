"""Software iWARP on TCP sockets: listening, connecting, MPA set-up in both roles."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import cast

from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.providers.base import (
    CloseCause,
    CloseReason,
    Endpoint,
    OnRequest,
    Prepare,
    Provider,
    ignore,
)
from smbdirect.providers.iwarp import mpa
from smbdirect.providers.iwarp.endpoint import CAPABILITIES, IwarpEndpoint
from smbdirect.providers.iwarp.linger import Linger
from smbdirect.providers.iwarp.mpa import FRAME_HEADER, Frame, FrameFlag, Parameters, Rtr
from smbdirect.providers.iwarp.receiver import RingPool
from smbdirect.providers.memory import SharedRegions
from smbdirect.tcp_info import raise_error
from smbdirect.unauthenticated import UnauthenticatedPeers

_log = logging.getLogger(__name__)

MPA_TIMEOUT = 5.0
"""Seconds from the TCP connection within which a peer must complete its MPA request."""
ANSWER_TIMEOUT = 10.0
"""Seconds that a connection request waits for ``accept`` or ``reject``; then it is rejected."""
MAX_HANDSHAKES = 1024
"""Most connections with an incomplete MPA request, if the provider shares no table with others."""
_ACCEPT_PAUSE = 0.5
"""Seconds without accepting after the process ran out of descriptors."""
_BACKLOG = 512


class IwarpConnectionRequest:
    """One complete MPA request. Implements ``base.ConnectionRequest``."""

    def __init__(self, provider: IwarpProvider, sock: socket.socket, frame: Frame) -> None:
        self.peer_address: tuple[str, int] = sock.getpeername()[:2]
        self.local_address: tuple[str, int] = sock.getsockname()[:2]
        self.private_data = frame.private_data
        self._provider = provider
        self._sock = sock
        self._frame = frame
        self._endpoint: IwarpEndpoint | None = None
        self._answered = False
        self._timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT, self._expired)

    def _answer(self) -> None:
        self._answered = True
        self._timer.cancel()

    def _expired(self) -> None:
        _log.warning("%s port %d: connection request not answered by the application", *self.peer_address)
        self.reject()

    def prepare(self) -> Endpoint:
        """See ``base.ConnectionRequest.prepare``. Raise ``ConnectionLost`` if the request was already answered."""
        if self._endpoint is None:
            if self._answered:
                raise ConnectionLost(CloseReason(CloseCause.LOCAL, "already answered, or too late"))
            self._endpoint = self._provider.endpoint(self._sock, self.private_data)
        return self._endpoint

    async def accept(self, private_data: bytes = b"") -> None:
        """See ``base.ConnectionRequest.accept``. An iWARP connection is established once the MPA reply is sent.

        Raises ``ProviderError`` for too much private data; the request can still be answered then.
        """
        self.prepare()
        endpoint = self._endpoint
        if endpoint is None or self._answered:
            raise ConnectionLost(CloseReason(CloseCause.LOCAL, "already answered"))
        frame, parameters = mpa.accept_frame(self._frame, private_data, self._provider.crc)
        reply = mpa.encode_frame(mpa.REPLY_KEY, frame)
        self._answer()
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, reply)
        except OSError as error:
            reason = CloseReason(CloseCause.PEER, str(error))
            endpoint.abort(reason)
            raise ConnectionLost(reason) from error
        except BaseException:
            endpoint.abort(CloseReason(CloseCause.LOCAL, "accepting was cancelled"))
            raise
        if endpoint.close_reason is not None:
            raise ConnectionLost(endpoint.close_reason)
        endpoint.establish(parameters, initiator=False)

    def reject(self, private_data: bytes = b"") -> None:
        if self._answered:
            return
        reply = mpa.encode_frame(mpa.REPLY_KEY, mpa.reject_frame(self._frame, private_data))
        self._answer()
        if self._endpoint is not None:
            self._endpoint.abort(CloseReason(CloseCause.LOCAL, "rejected"))
            return
        Linger(asyncio.get_running_loop(), self._sock, reply)


class _Handshake:
    """An accepted TCP connection with an incomplete MPA request. It holds a socket, a timer and at most one frame."""

    def __init__(self, provider: IwarpProvider, sock: socket.socket, on_request: OnRequest) -> None:
        self._provider = provider
        self._sock = sock
        self._on_request = on_request
        self._data = bytearray()
        self._wanted = FRAME_HEADER.size
        self._loop = asyncio.get_running_loop()
        self._peer: str = sock.getpeername()[0]
        place = provider.unauthenticated.enter(self._peer, self.close)
        if place is None:
            raise OSError(f"{self._peer}: too many unfinished handshakes")
        self._place = place
        self._timer = self._loop.call_later(MPA_TIMEOUT, self.close)
        provider.handshakes.add(self)
        self._loop.add_reader(sock, self._readable)

    def close(self) -> None:
        self._detach()
        self._sock.close()

    def _detach(self) -> None:
        self._timer.cancel()
        self._loop.remove_reader(self._sock)
        self._provider.handshakes.discard(self)
        self._place.leave()

    def _readable(self) -> None:
        frame = None
        try:
            # Do not read beyond the frame: the following bytes belong to the data phase.
            data = self._sock.recv(self._wanted - len(self._data))
            if not data:
                self.close()
                return
            self._data += data
            frame = self._parse()
            if frame is None:
                raise_error(self._sock)
                return
            mpa.check_request(frame)
            request = IwarpConnectionRequest(self._provider, self._sock, frame)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        except ProtocolError as error:
            _log.info("%s: %s", self._peer, error)
            if frame is None:
                # No answer to a malformed request: the peer may use any protocol.
                self.close()
            else:
                self._detach()
                Linger(self._loop, self._sock, mpa.encode_frame(mpa.REPLY_KEY, mpa.reject_frame(frame)))
            return
        self._detach()
        try:
            self._on_request(request)
        except BaseException:
            request.reject()
            raise

    def _parse(self) -> Frame | None:
        """Return the frame if it is complete, else None. Raise ``ProtocolError`` as soon as the data cannot be a
        frame."""
        data = self._data
        if not mpa.REQUEST_KEY.startswith(data[:16]):
            raise ProtocolError("not an MPA request", "RFC 5044 7.1.1")
        if len(data) < FRAME_HEADER.size:
            return None
        self._wanted = FRAME_HEADER.size + mpa.decode_header(data, mpa.REQUEST_KEY).private_data_length
        if len(data) < self._wanted:
            return None
        return mpa.decode_frame(data, mpa.REQUEST_KEY)


class IwarpListener:
    """A listening TCP socket for iWARP. Implements ``base.Listener``."""

    def __init__(self, provider: IwarpProvider, sock: socket.socket, on_request: OnRequest) -> None:
        self.address: tuple[str, int] = sock.getsockname()[:2]
        self.down = ""
        self.on_change: Callable[[], None] = ignore
        self._provider = provider
        self._sock = sock
        self._on_request = on_request
        self._loop = asyncio.get_running_loop()
        self._resume_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(sock, self._readable)

    async def close(self) -> None:
        """See ``base.Listener.close``. Idempotent."""
        if self._sock.fileno() < 0:
            return
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _readable(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    _log.warning("not accepting for %s s: %s", _ACCEPT_PAUSE, error)
                    self._loop.remove_reader(self._sock)
                    self._resume_timer = self._loop.call_later(_ACCEPT_PAUSE, self._resume)
                    return
                continue  # that connection ended in the backlog
            if self._provider.admits(address[0]):
                self._provider.adopt(sock, self._on_request)
            else:
                sock.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._sock, self._readable)


class IwarpProvider(Provider):
    """Software iWARP. Implements ``base.Provider``.

    ``crc`` requests checksums (a peer that requests them gets them in any case). ``large_fpdus`` sends FPDUs of up to
    64 KiB instead of one TCP segment; None does so for peers on the loopback interface. ``peer_to_peer`` makes
    ``connect`` offer a ready-to-receive operation. ``revision`` is the MPA revision that it requests first: if a peer
    refuses 2, it requests 1.
    """

    def __init__(
        self, crc: bool = False, large_fpdus: bool | None = None, peer_to_peer: Rtr | None = None, revision: int = 2
    ) -> None:
        self.capabilities = CAPABILITIES
        self.crc = crc
        self.handshakes: set[_Handshake] = set()
        self.unauthenticated = UnauthenticatedPeers(MAX_HANDSHAKES)
        """Peers with an incomplete MPA request."""
        self.admits: Callable[[str], bool] = lambda host: True
        """Whether an address may connect at all."""
        self._large_fpdus = large_fpdus
        self._peer_to_peer = peer_to_peer
        self._revision = revision
        self._rings = RingPool()

    adopts_sockets = True

    def share_table(self, unauthenticated: UnauthenticatedPeers, admits: Callable[[str], bool]) -> None:
        """See ``base.Provider.share_table``. Peers with an incomplete MPA request are counted."""
        self.unauthenticated = unauthenticated
        self.admits = admits

    def available(self) -> str | None:
        """Return None: iWARP needs only TCP."""
        return None

    def endpoint(self, sock: socket.socket, private_data: bytes = b"") -> IwarpEndpoint:
        """Return a new endpoint on a connected socket."""
        return IwarpEndpoint(sock, self._rings, private_data, self._large_fpdus)

    def shared_regions(self) -> SharedRegions:
        return SharedRegions()

    async def listen(self, host: str, port: int, on_request: OnRequest) -> IwarpListener:
        """See ``base.Provider.listen``. Raise ``OSError`` if the address is not available."""
        loop = asyncio.get_running_loop()
        family, kind, protocol, _, address = (
            await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(_BACKLOG)
            return IwarpListener(self, sock, on_request)
        except BaseException:
            sock.close()
            raise

    def adopt(self, sock: socket.socket, on_request: OnRequest) -> None:
        """See ``base.Provider.adopt``. Start MPA on ``sock``.

        This serves a listener that other protocols share and that has seen the first byte by ``MSG_PEEK``: MPA starts
        with "M". If the peer does not complete its request within ``MPA_TIMEOUT``, the connection is closed silently.
        """
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Handshake(self, sock, on_request)
        except OSError as error:
            _log.info("connection dropped: %s", error)
            sock.close()

    async def connect(
        self, host: str, port: int, prepare: Prepare, private_data: bytes = b"", timeout: float = 5.0
    ) -> Endpoint:
        try:
            async with asyncio.timeout(timeout):
                return await self._connect(host, port, prepare, private_data)
        except TimeoutError:
            raise ConnectionLost(CloseReason(CloseCause.TIMEOUT, f"no MPA reply within {timeout} s")) from None

    async def _connect(self, host: str, port: int, prepare: Prepare, private_data: bytes) -> IwarpEndpoint:
        sock = await _connected(host, port)
        try:
            endpoint = self.endpoint(sock)
        except OSError as error:
            sock.close()
            raise ConnectionLost(CloseReason(CloseCause.PEER, str(error))) from error
        try:
            prepare(endpoint)
            try:
                parameters, endpoint.private_data = await self._initiate(sock, private_data, self._revision)
            except _OldPeerError as refusal:
                if endpoint.close_reason is not None:
                    raise
                _log.info("%s port %d: trying again with MPA revision 1: %s", host, port, refusal)
                sock = await _connected(host, port)
                endpoint.use_socket(sock)
                parameters, endpoint.private_data = await self._initiate(sock, private_data, 1)
        except ConnectionLost as error:
            endpoint.abort(cast(CloseReason, error.reason))
            raise
        except (OSError, EOFError, ProtocolError) as error:
            cause = CloseCause.PROTOCOL if isinstance(error, ProtocolError) else CloseCause.PEER
            reason = CloseReason(cause, str(error))
            endpoint.abort(reason)
            raise ConnectionLost(reason) from error
        except BaseException:
            endpoint.abort(CloseReason(CloseCause.LOCAL, "connecting failed"))
            raise
        if endpoint.close_reason is not None:
            raise ConnectionLost(endpoint.close_reason)
        endpoint.establish(parameters, initiator=True)
        return endpoint

    async def _initiate(self, sock: socket.socket, private_data: bytes, revision: int) -> tuple[Parameters, bytes]:
        """Exchange MPA frames and return the agreed parameters and the responder's private data. Raise
        ``_OldPeerError`` if revision 1 may be requested instead."""
        loop = asyncio.get_running_loop()
        request = mpa.request_frame(private_data, self.crc, revision, self._peer_to_peer)
        await loop.sock_sendall(sock, mpa.encode_frame(mpa.REQUEST_KEY, request))
        try:
            data = await _receive_exactly(sock, 1)
        except (EOFError, ConnectionResetError) as error:
            # RFC 5044 section 7.1.1: a responder that does not know the revision closes the connection.
            raise (_OldPeerError(str(error)) if revision > 1 else error) from error
        data += await _receive_exactly(sock, FRAME_HEADER.size - 1)
        header = mpa.decode_header(data, mpa.REPLY_KEY)
        data += await _receive_exactly(sock, header.private_data_length)
        reply = mpa.decode_frame(data, mpa.REPLY_KEY)
        if revision > 1 and reply.revision == 1 and FrameFlag.REJECT in reply.flags:
            # A peer that knows revision 2 rejects in revision 2.
            raise _OldPeerError("rejected in revision 1")
        return mpa.complete_request(request, reply), reply.private_data


class _OldPeerError(EOFError):
    """The responder may know only MPA revision 1."""


async def _connected(host: str, port: int) -> socket.socket:
    """Return a TCP connection to the first address that answers. Raise ``ConnectionLost`` if none does."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError("no address")
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(CloseReason(CloseCause.DEVICE, str(error))) from error
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
    cause = CloseCause.PEER if isinstance(failure, ConnectionError) else CloseCause.DEVICE
    # asyncio's own text has the address, but not the error.
    detail = os.strerror(failure.errno) if failure.errno else str(failure)
    raise ConnectionLost(CloseReason(cause, detail)) from failure


async def _receive_exactly(sock: socket.socket, size: int) -> bytearray:
    """Receive ``size`` bytes. Raise ``EOFError`` if the peer closes before."""
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < size:
        part = await loop.sock_recv(sock, size - len(data))
        if not part:
            raise EOFError("closed by the peer during MPA set-up")
        data += part
    return data

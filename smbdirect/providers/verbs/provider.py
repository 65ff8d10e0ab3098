"""Listening and connecting through the kernel's RDMA connection manager."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import replace

from smbdirect.errors import ConnectionLost, ProviderError
from smbdirect.providers.base import Capabilities, CloseCause, CloseReason, Endpoint, Prepare, Provider, ignore
from smbdirect.providers.verbs import abi, device
from smbdirect.providers.verbs.device import Device
from smbdirect.providers.verbs.endpoint import VerbsEndpoint
from smbdirect.providers.verbs.events import DeviceEvents
from smbdirect.providers.verbs.memory import Domain
from smbdirect.providers.verbs.thread import VerbsThread

BACKLOG = 128
RESOLVE_MILLISECONDS = 2000
RETRY_COUNT = 7
RNR_RETRY_COUNT = 0
"""A credit promises a posted receive (MS-SMBD 3.1.5.9), so a missing receive is an error, not a reason to wait."""

_REASONS = {
    abi.CM_DISCONNECTED: CloseReason(CloseCause.PEER),
    abi.CM_CONNECT_ERROR: CloseReason(CloseCause.PROTOCOL, "connection establishment failed"),
    abi.CM_UNREACHABLE: CloseReason(CloseCause.TIMEOUT, "peer unreachable"),
    abi.CM_REJECTED: CloseReason(CloseCause.PEER, "rejected"),
    abi.CM_ADDR_ERROR: CloseReason(CloseCause.DEVICE, "no RDMA device leads to this address"),
    abi.CM_ROUTE_ERROR: CloseReason(CloseCause.DEVICE, "no route"),
    abi.CM_DEVICE_REMOVAL: CloseReason(CloseCause.DEVICE, "device removed"),
}


OnCmEvent = Callable[[abi.CmEvent, bytes], None]
"""Called with an event and the private data that came with it."""


class _Cm:
    """The connection manager's event channel of one event loop. It passes each event to the handler of its connection
    identifier."""

    def __init__(self, libraries: abi.Libraries, loop: asyncio.AbstractEventLoop) -> None:
        self.thread = VerbsThread(loop)
        self.libraries = libraries = self.thread.bring(libraries)
        self.loop = loop
        self.handlers: dict[int, OnCmEvent] = {}
        """By connection identifier."""
        self.devices: dict[int, tuple[Device, Domain]] = {}
        """By the address of their ``struct ibv_context``: opened devices, and the domain that accepted connections
        share."""
        self.events = DeviceEvents(libraries, loop)
        self.channel: int = libraries.cm.rdma_create_event_channel()
        if not self.channel:
            raise abi.oserror("rdma_create_event_channel (is rdma_ucm loaded?)")
        self.fd = abi.int_at(self.channel)
        os.set_blocking(self.fd, False)
        loop.add_reader(self.fd, self._on_readable)

    def create_id(self) -> int:
        """Return a new connection identifier. Raise ``OSError`` if that fails."""
        cm_id = ctypes.c_void_p()
        if self.libraries.cm.rdma_create_id(self.channel, ctypes.byref(cm_id), None, abi.PS_TCP):
            raise abi.oserror("rdma_create_id")
        assert cm_id.value is not None
        return cm_id.value

    def device_of(self, cm_id: int) -> tuple[Device, Domain]:
        """Return the device of a connection identifier, and the device's shared domain. Raise ``ProviderError`` if it
        has none."""
        context = abi.pointer_at(cm_id + abi.CM_ID_VERBS)
        if not context:
            raise ProviderError("the connection has no device")
        if context not in self.devices:
            opened = Device(self.libraries, context, self.thread)
            self.devices[context] = (opened, Domain(opened))
            self.events.watch(opened)
        return self.devices[context]

    def _on_readable(self) -> None:
        cm = self.libraries.cm
        event = ctypes.POINTER(abi.CmEvent)()
        while not cm.rdma_get_cm_event(self.channel, ctypes.byref(event)):
            # Copied, because acknowledging frees the event, and an identifier cannot be destroyed before that.
            copy = abi.CmEvent.from_buffer_copy(event.contents)
            data = b""
            if copy.conn.private_data and copy.event in _WITH_PRIVATE_DATA:
                data = ctypes.string_at(copy.conn.private_data, copy.conn.private_data_len)
            cm.rdma_ack_cm_event(event)
            owner = copy.listen_id if copy.event == abi.CM_CONNECT_REQUEST else copy.id
            handler = self.handlers.get(owner or 0)
            if handler is not None:
                handler(copy, data)
            elif copy.event == abi.CM_CONNECT_REQUEST:
                cm.rdma_reject(copy.id, None, 0)
                cm.rdma_destroy_id(copy.id)


_WITH_PRIVATE_DATA = {abi.CM_CONNECT_REQUEST, abi.CM_ESTABLISHED, abi.CM_REJECTED, abi.CM_CONNECT_RESPONSE}


class _Connection:
    """One connection identifier and the endpoint on it, in either role."""

    def __init__(self, cm: _Cm, cm_id: int) -> None:
        self.cm = cm
        self.cm_id = cm_id
        self.device: Device | None = None
        self.port = 0
        self.queue_pair = 0
        self.domain: Domain | None = None
        self.endpoint: VerbsEndpoint | None = None
        self.step: asyncio.Future[int] = cm.loop.create_future()
        self.private_data = b""
        self.gone = False
        """Whether the identifier was destroyed with its endpoint."""
        cm.handlers[cm_id] = self.on_event

    def make_endpoint(self, own_domain: bool) -> VerbsEndpoint:
        """Return a new endpoint. ``own_domain`` gives this connection a protection domain of its own, which the side
        that exposes memory needs. Raise ``ProviderError`` if the device refuses."""
        self.device, domain = self.cm.device_of(self.cm_id)
        # The keys of such sinks are on the wire and allow writing: no other connection may use them.
        if own_domain or self.device.read_sink_needs_remote_write:
            domain = self.domain = Domain(self.device)
        try:
            self.endpoint = VerbsEndpoint(self.device, domain, self.cm_id, self.cm.loop)
        except ProviderError:
            if self.domain is not None:
                self.domain.close()
            raise
        self.port = abi.byte_at(self.cm_id + abi.CM_ID_PORT)
        self.queue_pair = self.endpoint.queue_pair
        self.cm.events.members.add(self)
        self.endpoint.private_data = self.private_data
        self.endpoint.on_released = self._released
        return self.endpoint

    def _released(self, _: VerbsEndpoint) -> None:
        self.gone = True
        if self.domain is not None:
            self.domain.close()
        self.cm.events.members.discard(self)
        self.cm.handlers.pop(self.cm_id, None)
        if not self.step.done():
            self.step.set_exception(ConnectionLost("closed"))
            self.step.exception()

    def on_event(self, details: abi.CmEvent, private_data: bytes) -> None:
        """Handle an event of the connection manager."""
        event = details.event
        if event in _REASONS:
            reason = _REASONS[event]
            if details.status:
                reason = CloseReason(reason.cause, f"{reason.detail or 'ended'} (status {details.status})")
            self.lost(reason)
        elif event in (abi.CM_ADDR_RESOLVED, abi.CM_ROUTE_RESOLVED, abi.CM_ESTABLISHED):
            if event == abi.CM_ESTABLISHED and self.endpoint is not None and not self.endpoint.private_data:
                self.endpoint.private_data = private_data
            if not self.step.done():
                self.step.set_result(event)

    def lost(self, reason: CloseReason) -> None:
        """End the connection: the peer, the port or the device is gone."""
        if not self.step.done():
            self.step.set_exception(ConnectionLost(reason))
            # The exception counts as retrieved: perhaps no task is waiting (for an abandoned request).
            self.step.exception()
        if self.endpoint is not None:
            self.endpoint.peer_disconnected(reason)

    def restored(self) -> None:
        """Do nothing: the connection ended when the port went down."""

    async def wait(self, timeout: float) -> None:
        """Wait until the connection manager reports the step under way. Raise ``ConnectionLost`` if it fails, or after
        ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self.step)
        except TimeoutError:
            raise ConnectionLost(CloseReason(CloseCause.TIMEOUT, "no answer from the peer")) from None
        self.step = self.cm.loop.create_future()

    def destroy(self) -> None:
        """Destroy the identifier if it has no endpoint."""
        if self.cm.handlers.pop(self.cm_id, None) is not None and self.endpoint is None:
            self.cm.libraries.cm.rdma_destroy_id(self.cm_id)


class VerbsConnectionRequest:
    """One connection request. Implements ``base.ConnectionRequest``."""

    def __init__(self, connection: _Connection, details: abi.CmEvent, private_data: bytes) -> None:
        self._connection = connection
        self.private_data = private_data
        self.local_address = abi.unpack_sockaddr(connection.cm_id + abi.CM_ID_SOURCE)
        self.peer_address = abi.unpack_sockaddr(connection.cm_id + abi.CM_ID_DESTINATION)
        self._responder_resources = int(details.conn.responder_resources)
        self._initiator_depth = int(details.conn.initiator_depth)

    def prepare(self) -> Endpoint:
        self._connection.private_data = self.private_data
        return self._connection.make_endpoint(own_domain=False)

    async def accept(self, private_data: bytes = b"") -> None:
        connection = self._connection
        if connection.endpoint is None or connection.device is None:
            raise ProviderError("prepare() comes before accept()")
        if connection.gone:
            raise ConnectionLost("closed")
        opened = connection.device
        buffer = abi.memory_of(private_data)
        responder, initiator = self._responder_resources, self._initiator_depth
        if opened.iwarp:
            # Linux 6.12: iw_cm reports the peer's two values in the opposite order to ib_cm, and NIC drivers reduce
            # them to the limits of the peer. An SMB client requests no outbound Reads (ORD 0), so the wrong value would
            # be 0, and the client's first inbound Read would end the connection.
            responder = initiator = max(responder, initiator)
        reads = min(initiator, opened.max_initiator_depth)
        connection.endpoint.capabilities = replace(connection.endpoint.capabilities, max_outstanding_reads=reads)
        parameters = abi.ConnParam(
            private_data=ctypes.addressof(buffer) if private_data else None,
            private_data_len=len(private_data),
            responder_resources=min(responder, opened.max_read_depth),
            initiator_depth=reads,
            rnr_retry_count=RNR_RETRY_COUNT,
        )
        if connection.cm.libraries.cm.rdma_accept(connection.cm_id, ctypes.byref(parameters)):
            error = abi.oserror("rdma_accept")
            connection.endpoint.abort(CloseReason(CloseCause.DEVICE, str(error)))
            raise ConnectionLost(str(error))
        try:
            await connection.wait(5.0)
        except ConnectionLost:
            connection.endpoint.abort()
            raise

    def reject(self, private_data: bytes = b"") -> None:
        connection = self._connection
        if connection.gone:
            return
        buffer = abi.memory_of(private_data)
        connection.cm.libraries.cm.rdma_reject(connection.cm_id, ctypes.addressof(buffer), len(private_data))
        if connection.endpoint is not None:
            connection.endpoint.abort()
        else:
            connection.destroy()


class VerbsListener:
    """A listening address. Implements ``base.Listener``. It reports the state of the port with the address; a wildcard
    belongs to all devices, so it reports none."""

    def __init__(self, cm: _Cm, cm_id: int, host: str, on_request: Callable[[VerbsConnectionRequest], None]) -> None:
        self.down = ""
        self.on_change: Callable[[], None] = ignore
        self.queue_pair = 0
        self.port = abi.byte_at(cm_id + abi.CM_ID_PORT)
        bound = abi.pointer_at(cm_id + abi.CM_ID_VERBS) != 0
        self.device = cm.device_of(cm_id)[0] if bound else None
        self._cm = cm
        self._cm_id: int | None = cm_id
        self._on_request = on_request
        self.address = (
            host,
            int.from_bytes(int(cm.libraries.cm.rdma_get_src_port(cm_id)).to_bytes(2, "little"), "big"),
        )
        cm.handlers[cm_id] = self._on_event
        cm.events.members.add(self)

    def _on_event(self, details: abi.CmEvent, private_data: bytes) -> None:
        if details.event == abi.CM_CONNECT_REQUEST:
            if self.down and self.device is not None and device.is_active(self.device.name, self.port):
                # The request proves that the port works although no event reported it.
                self.restored()
            if self.down:
                self._cm.libraries.cm.rdma_reject(details.id, None, 0)
                self._cm.libraries.cm.rdma_destroy_id(details.id)
                return
            self._on_request(VerbsConnectionRequest(_Connection(self._cm, details.id), details, private_data))
        elif details.event == abi.CM_DEVICE_REMOVAL:
            name = self.device.name if self.device is not None else "RDMA"
            self.lost(CloseReason(CloseCause.DEVICE, f"{name}: device removed"))
            self._destroy()

    def lost(self, reason: CloseReason) -> None:
        """Report that no peer can connect."""
        self.down = reason.detail
        self.on_change()

    def restored(self) -> None:
        """Report that peers can connect again, unless the device was removed."""
        if self._cm_id is not None:
            self.down = ""
            self.on_change()

    def _destroy(self) -> None:
        cm_id, self._cm_id = self._cm_id, None
        self._cm.events.members.discard(self)
        if cm_id is not None:
            self._cm.handlers.pop(cm_id, None)
            self._cm.libraries.cm.rdma_destroy_id(cm_id)

    async def close(self) -> None:
        self._destroy()


class VerbsProvider(Provider):
    """The kernel's RDMA devices. Implements ``base.Provider``. The address determines the device."""

    def __init__(self) -> None:
        self._cms: dict[asyncio.AbstractEventLoop, _Cm] = {}
        self.capabilities = Capabilities(
            name="verbs",
            max_send_sge=1,
            max_read_sge=1,
            max_transfer=device.MAX_TRANSFER,
            max_message=device.MAX_TRANSFER,
            max_send_queue=16,
            max_receive_queue=16,
            max_outstanding_reads=1,
            requires_registration=True,
            regions_invalidatable=False,
            registers_files=False,
        )
        """The lowest limits of any device; each endpoint has those of its own device."""

    def available(self) -> str | None:
        return device.why_unavailable()

    def _cm(self) -> _Cm:
        loop = asyncio.get_running_loop()
        if loop not in self._cms:
            self._cms[loop] = _Cm(abi.load(), loop)
        return self._cms[loop]

    async def listen(self, host: str, port: int, on_request: Callable[[VerbsConnectionRequest], None]) -> VerbsListener:
        """See ``base.Provider``. Raise ``OSError`` if that fails (EADDRINUSE: a kernel server such as ksmbd or another
        process has the port)."""
        cm = self._cm()
        cm_id = cm.create_id()
        address = abi.pack_sockaddr(host, port)
        if cm.libraries.cm.rdma_bind_addr(cm_id, ctypes.addressof(address)):
            error = abi.oserror(f"rdma_bind_addr {host or '*'}:{port}")
        elif cm.libraries.cm.rdma_listen(cm_id, BACKLOG):
            error = abi.oserror(f"rdma_listen {host or '*'}:{port}")
        else:
            return VerbsListener(cm, cm_id, host, on_request)
        cm.libraries.cm.rdma_destroy_id(cm_id)
        if error.errno == errno.ENODEV:
            raise OSError(errno.ENODEV, f"no RDMA device has the address {host}") from None
        raise error

    async def connect(
        self, host: str, port: int, prepare: Prepare, private_data: bytes = b"", timeout: float = 5.0
    ) -> VerbsEndpoint:
        """See ``base.Provider``. Raise ``ConnectionLost`` or ``OSError`` if that fails."""
        cm = self._cm()
        connection = _Connection(cm, cm.create_id())
        address = abi.pack_sockaddr(host, port)
        library = cm.libraries.cm
        try:
            if library.rdma_resolve_addr(connection.cm_id, None, ctypes.addressof(address), RESOLVE_MILLISECONDS):
                raise abi.oserror(f"rdma_resolve_addr {host}")
            await connection.wait(timeout)
            if library.rdma_resolve_route(connection.cm_id, RESOLVE_MILLISECONDS):
                raise abi.oserror(f"rdma_resolve_route {host}")
            await connection.wait(timeout)
            endpoint = connection.make_endpoint(own_domain=True)
            prepare(endpoint)
            opened = connection.device
            assert opened is not None
            data = abi.memory_of(private_data)
            parameters = abi.ConnParam(
                private_data=ctypes.addressof(data) if private_data else None,
                private_data_len=len(private_data),
                responder_resources=opened.max_read_depth,
                initiator_depth=opened.max_initiator_depth,
                retry_count=RETRY_COUNT,
                rnr_retry_count=RNR_RETRY_COUNT,
            )
            if library.rdma_connect(connection.cm_id, ctypes.byref(parameters)):
                raise ConnectionLost(CloseReason(CloseCause.PEER, str(abi.oserror(f"rdma_connect {host}:{port}"))))
            await connection.wait(timeout)
        except BaseException:
            if connection.endpoint is not None:
                connection.endpoint.abort()
            else:
                connection.destroy()
            raise
        return endpoint

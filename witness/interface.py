"""The RPC interface: it decodes calls, applies them to the registrations and encodes answers. [MS-SWN 3.1.4]"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from smb3server.rpc.association import Association
from smb3server.rpc.dcerpc import FAULT_ACCESS_DENIED, FAULT_BAD_STUB_DATA, Deferred, Fault, Interface, Operation
from smb3server.rpc.ndr import operation
from witness import ndr
from witness.cluster import ClusterEvents
from witness.registrations import Notification, Registrations, Request, Waiter, WitnessError

log = logging.getLogger(__name__)


class WitnessInterface:
    """The interface, for all associations of an endpoint."""

    def __init__(
        self,
        cluster: ClusterEvents,
        registrations: Registrations,
        require_privacy: bool = False,
        clock: Callable[[], float] = time.monotonic,
        deadline_set: Callable[[], None] = lambda: None,
    ) -> None:
        """``require_privacy``: whether calls that are only signed are refused. ``clock``: returns seconds.
        ``deadline_set``: called when a registration or a waiting call was added or removed, so that the caller can
        adjust its timer."""
        self._cluster = cluster
        self._registrations = registrations
        self._require_privacy = require_privacy
        self._clock = clock
        self._deadline_set = deadline_set
        self._waiting: dict[Deferred, None] = {}
        """Calls of WitnessrGetInterfaceList while no interface is available."""

    def interface(self, association: Association) -> Interface:
        """Return the operations for the calls of an association, as ``RpcListener`` needs them."""
        methods: dict[int, Operation] = {
            0: lambda stub: self._interfaces(),
            1: operation(ndr.Register, lambda request: self._register(association, request)),
            2: operation(ndr.UnRegister, lambda request: self._unregister(association, request)),
            3: lambda stub: self._notify(association, stub),
            4: operation(ndr.RegisterEx, lambda request: self._register_extended(association, request)),
            5: operation(ndr.UnRegisterEx, lambda request: self._unregister_extended(association, request)),
        }
        guarded = {opnum: self._guarded(association, method) for opnum, method in methods.items()}
        return Interface(ndr.UUID, ndr.MAJOR, guarded)

    def _guarded(self, association: Association, method: Operation) -> Operation:
        """Return ``method`` restricted to callers who are authenticated and whose calls are at least signed.
        [MS-SWN 2.1]"""

        def run(stub: bytes) -> bytes | Deferred:
            caller = association.caller
            if caller is None or caller.identity is None or not caller.protects:
                raise Fault(FAULT_ACCESS_DENIED)
            if self._require_privacy and not caller.private:
                raise Fault(FAULT_ACCESS_DENIED)
            return method(stub)

        return run

    def _interfaces(self) -> bytes | Deferred:
        """Answer WitnessrGetInterfaceList, which has no parameters. [MS-SWN 3.1.4.1]

        If no interface that clients may register with is available, the call waits for one."""
        answer = self._interface_list()
        if answer is not None:
            return answer
        deferred = Deferred(lambda: self._waiting.pop(deferred, None))
        self._waiting[deferred] = None
        return deferred

    def _interface_list(self) -> bytes | None:
        """Return the present answer, None if the call has to wait."""
        interfaces = self._cluster.interfaces()
        # Clients select an interface with INTERFACE_WITNESS (MS-SWN 3.2.4.1), so one without is worth no answer, unless
        # no other node is known that the call could wait for.
        wanted = [entry for entry in interfaces if entry.witness] or interfaces
        if wanted and not any(entry.state == ndr.InterfaceState.AVAILABLE for entry in wanted):
            return None
        return bytes(ndr.interface_list_response(interfaces).getData())

    def cluster_changed(self) -> None:
        """Answer the calls that wait for an interface, if one is available now. [MS-SWN 3.1.6.1]"""
        answer = self._interface_list() if self._waiting else None
        if answer is None:
            return
        waiting, self._waiting = self._waiting, {}
        for deferred in waiting:
            deferred.resolve(answer)

    def _owner(self, association: Association) -> tuple[int, str]:
        """Return the owner of handles: a user, on any connection of an association group.

        Raises ``Fault`` if the caller is not authenticated."""
        caller, group = association.caller, association.group
        if caller is None or caller.identity is None or group is None:
            raise Fault(FAULT_ACCESS_DENIED)
        return group.number, caller.identity.owner

    def _register(self, association: Association, request: Any) -> Any:
        """Answer WitnessrRegister. [MS-SWN 3.1.4.2]"""
        wanted = Request(
            request["Version"],
            ndr.optional_text(request["NetName"]),
            ndr.optional_text(request["IpAddress"]),
            ndr.optional_text(request["ClientComputerName"]),
        )
        return self._registered(association, wanted, ndr.RegisterResponse())

    def _register_extended(self, association: Association, request: Any) -> Any:
        """Answer WitnessrRegisterEx. [MS-SWN 3.1.4.5]"""
        wanted = Request(
            request["Version"],
            ndr.optional_text(request["NetName"]),
            ndr.optional_text(request["IpAddress"]),
            ndr.optional_text(request["ClientComputerName"]),
            True,
            ndr.optional_text(request["ShareName"]),
            request["Flags"],
            request["KeepAliveTimeout"],
        )
        return self._registered(association, wanted, ndr.RegisterExResponse())

    def _registered(self, association: Association, wanted: Request, response: Any) -> Any:
        owner = self._owner(association)
        handle = bytes(ndr.HANDLE_SIZE)
        status = ndr.Win32.SUCCESS
        try:
            user = str(association.caller.identity) if association.caller is not None else ""
            key = self._registrations.register(wanted, owner, user, self._clock())
            handle = bytes(4) + key
            self._watch_group(association)
            log.debug("%s (%s) registered for %s", wanted.client, association.peer_host, wanted.net_name)
        except WitnessError as error:
            status = error.status
        response["ppContext"] = handle
        response["ErrorCode"] = int(status)
        self._deadline_set()
        return response

    def _watch_group(self, association: Association) -> None:
        """End the handles of an association's owner with the last connection of its group. [C706 5.1.6]"""
        group = association.group
        owner = self._owner(association)
        if group is not None and owner not in group.attachments:
            group.attachments.add(owner)
            group.on_rundown.append(lambda: self._rundown(owner))

    def _rundown(self, owner: tuple[int, str]) -> None:
        count = self._registrations.owner_gone(owner)
        if count:
            log.debug("%r disconnected: %d registrations ended", owner[1], count)

    def _unregister(self, association: Association, request: Any) -> Any:
        """Answer WitnessrUnRegister. [MS-SWN 3.1.4.3]"""
        response = ndr.UnRegisterResponse()
        response["ErrorCode"] = int(self._unregistered(association, request["pContext"]))
        return response

    def _unregister_extended(self, association: Association, request: Any) -> Any:
        """Answer WitnessrUnRegisterEx. The handle is null after success. [MS-SWN 3.1.4.6]"""
        response = ndr.UnRegisterExResponse()
        status = self._unregistered(association, request["ppContext"])
        response["ppContext"] = bytes(ndr.HANDLE_SIZE) if status == ndr.Win32.SUCCESS else request["ppContext"]
        response["ErrorCode"] = int(status)
        return response

    def _unregistered(self, association: Association, handle: bytes) -> ndr.Win32:
        try:
            self._registrations.unregister(handle[4:], self._owner(association))
        except WitnessError as error:
            return error.status
        return ndr.Win32.SUCCESS

    def _notify(self, association: Association, stub: bytes) -> bytes | Deferred:
        """Answer WitnessrAsyncNotify with the next notification, or when the registration's keepalive expires.
        [MS-SWN 3.1.4.4]"""
        if len(stub) < ndr.HANDLE_SIZE:
            raise Fault(FAULT_BAD_STUB_DATA)
        key = stub[4 : ndr.HANDLE_SIZE]
        ready: list[bytes] = []
        waiting: list[Waiter] = []

        def abandon() -> None:
            self._registrations.forget(key, waiting[0], self._clock())
            self._deadline_set()

        deferred = Deferred(abandon)

        def answer(status: ndr.Win32, notification: Notification | None) -> None:
            result = notification.stub if notification is not None else ndr.notification_error_stub(status)
            if waiting:
                deferred.resolve(result)
            else:
                ready.append(result)

        try:
            waiter = self._registrations.wait(key, self._owner(association), self._clock(), answer)
        except WitnessError as error:
            return ndr.notification_error_stub(error.status)
        if waiter is None:
            return ready[0]
        waiting.append(waiter)
        self._deadline_set()
        return deferred

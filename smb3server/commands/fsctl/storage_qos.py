"""FSCTL_STORAGE_QOS_CONTROL. [MS-SQOS 3.2.5.1]"""

from __future__ import annotations

import asyncio
from functools import partial

from smb3server.commands.fsctl.ioctl import Control, fsctl
from smb3server.dispatch.lookup import handle_of
from smb3server.qos.flows import NO_ID, Flow
from smb3server.state.objects import Open
from smb3server.state.server_state import ServerState
from smb3server.wire import sqos as wire
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.sqos import Options, QosRequest
from smb3server.wire.status import NtStatus, StatusError

_TIME_TO_LIVE = 4000
"""Milliseconds for which a status holds."""
_SMALLEST_RESPONSE = 80
_EVERY = int(
    Options.SET_LOGICAL_FLOW_ID
    | Options.SET_POLICY
    | Options.PROBE_POLICY
    | Options.GET_STATUS
    | Options.UPDATE_COUNTERS
)
_POLICY = int(Options.SET_POLICY | Options.PROBE_POLICY)


@fsctl(Fsctl.STORAGE_QOS_CONTROL)
def control_qos(control: Control) -> bytes:
    """Associate an open with a flow, set the flow's policy, count for it, and describe it."""
    opened = control.open()
    handle_of(opened)
    data = bytes(control.data)
    request, bandwidth = _parse(data)
    options = request.options
    if not options & _EVERY:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if opened.flow is not None:
        options &= ~Options.PROBE_POLICY
    if options & Options.GET_STATUS and control.max_output < _SMALLEST_RESPONSE:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    names = _check_policy(request, bandwidth, data) if options & _POLICY else ("", "")
    server = control.request.server
    flow = _associate(server, opened, options, request.logical_flow_id)
    if options & _POLICY:
        _set_policy(_needed(flow), request, bandwidth, names)
    if options & Options.UPDATE_COUNTERS:
        counted = _needed(flow)
        counted.reported_operations += request.operations
        counted.reported_latency += request.latency
    return _describe(_needed(flow), request.version) if options & Options.GET_STATUS else b""


def _needed(flow: Flow | None) -> Flow:
    if flow is None:
        raise StatusError(NtStatus.NOT_FOUND)
    return flow


def _parse(data: bytes) -> tuple[QosRequest, wire.Bandwidth]:
    """Decode the fixed part. Raises ``StatusError``."""
    if len(data) < 4:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    version = int.from_bytes(data[:2], "little")
    if version not in (wire.VERSION_1_0, wire.VERSION_1_1):
        raise StatusError(NtStatus.REVISION_MISMATCH)
    size = wire.QOS_REQUEST.size + (wire.BANDWIDTH.size if version == wire.VERSION_1_1 else 0)
    if len(data) < size:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    request = wire.QOS_REQUEST.unpack(data)
    if version == wire.VERSION_1_0:
        return request, wire.Bandwidth()
    # A request of version 1.0 that calls itself 1.1 has its names where the bandwidth is.
    for offset, length in ((request.name_offset, request.name_length), (request.node_offset, request.node_length)):
        if length and offset < size:
            raise StatusError(NtStatus.INVALID_PARAMETER)
    return request, wire.BANDWIDTH.unpack(data, wire.QOS_REQUEST.size)


def _check_policy(request: QosRequest, bandwidth: wire.Bandwidth, data: bytes) -> tuple[str, str]:
    """Return the names of initiator and node. Raises INVALID_PARAMETER. [MS-SQOS 3.2.5.1.2]"""
    limits = request.limit, request.reservation, bandwidth.limit
    if max(limits) > wire.MAX_RATE or (request.limit and request.reservation > request.limit):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    if any(limits) and request.policy_id != NO_ID:
        raise StatusError(NtStatus.INVALID_PARAMETER)
    name = _name_in(data, request.name_offset, request.name_length)
    return name, _name_in(data, request.node_offset, request.node_length)


def _name_in(data: bytes, offset: int, length: int) -> str:
    if not length:
        return ""
    if length > wire.MAX_NAME or offset < wire.SMALLEST_OFFSET or offset + length > len(data):
        raise StatusError(NtStatus.INVALID_PARAMETER)
    return data[offset : offset + length].decode("utf-16-le", "replace")


def _associate(server: ServerState, opened: Open, options: int, flow_id: bytes) -> Flow | None:
    """Associate the open as the options say, and return its flow. Raises ``StatusError``. [MS-SQOS 3.2.5.1.1]"""
    if not options & (Options.SET_LOGICAL_FLOW_ID | Options.PROBE_POLICY):
        return opened.flow
    if flow_id == NO_ID:
        if options & Options.PROBE_POLICY:
            raise StatusError(NtStatus.INVALID_PARAMETER)
        _leave(server, opened)
        return None
    if opened.flow is None or opened.flow.flow_id != flow_id:
        flow = server.flows.join(flow_id, asyncio.get_running_loop().time())
        if flow is None:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES)
        if opened.flow is None:
            opened.on_close.append(partial(_leave, server, opened))
        else:
            server.flows.leave(opened.flow)
        opened.flow = flow
        # Without a descriptor no request goes around the flow.
        opened.descriptor = None
    return opened.flow


def _leave(server: ServerState, opened: Open) -> None:
    """End the association of an open."""
    flow, opened.flow = opened.flow, None
    if flow is None:
        return
    server.flows.leave(flow)
    if opened.handle is not None:
        opened.use_handle(opened.handle)


def _set_policy(flow: Flow, request: QosRequest, bandwidth: wire.Bandwidth, names: tuple[str, str]) -> None:
    flow.policy_id, flow.initiator_id = request.policy_id, request.initiator_id
    flow.limit, flow.reservation, flow.bandwidth_limit = request.limit, request.reservation, bandwidth.limit
    flow.initiator, flow.node = names[0] or flow.initiator, names[1] or flow.node


def _describe(flow: Flow, version: int) -> bytes:
    """[MS-SQOS 3.2.5.1.4]"""
    response = wire.QOS_RESPONSE.pack(
        wire.QosResponse(
            version,
            logical_flow_id=flow.flow_id,
            policy_id=flow.policy_id,
            initiator_id=flow.initiator_id,
            time_to_live=_TIME_TO_LIVE,
            status=flow.status,
            maximum_io_rate=flow.maximum_iops,
            minimum_io_rate=flow.minimum_iops,
        )
    )
    if version == wire.VERSION_1_1:
        response += flow.maximum_bandwidth.to_bytes(8, "little")
    return response

"""The part of libibverbs' and librdmacm's binary interface that is used here (rdma-core 44, stable since 2006).

Control structures are ctypes; those of the data path are packed by ``struct`` directly into reusable memory.
``tests/smbdirect/verbs/test_abi.py`` compares every offset with the installed headers if there is a compiler.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import socket
import struct
from ctypes import POINTER, Structure, c_char, c_int, c_size_t, c_ubyte, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

# verbs.h: enum ibv_wr_opcode, ibv_wc_opcode, ibv_send_flags, ibv_access_flags, ibv_wc_flags
WR_WRITE, WR_SEND, WR_READ, WR_COMPARE_SWAP, WR_FETCH_ADD, WR_SEND_INV = 0, 2, 4, 5, 6, 9
WC_SEND, WC_WRITE, WC_READ, WC_RECV = 0, 1, 2, 128
SEND_SIGNALED, SEND_INLINE = 2, 8
ACCESS_LOCAL_WRITE, ACCESS_REMOTE_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_ATOMIC = 1, 2, 4, 8
WC_WITH_INV = 8
QPT_RC = 2
PS_TCP = 0x0106

# rdma_cma.h: enum rdma_cm_event_type
CM_ADDR_RESOLVED = 0
CM_ADDR_ERROR = 1
CM_ROUTE_RESOLVED = 2
CM_ROUTE_ERROR = 3
CM_CONNECT_REQUEST = 4
CM_CONNECT_RESPONSE = 5
CM_CONNECT_ERROR = 6
CM_UNREACHABLE = 7
CM_REJECTED = 8
CM_ESTABLISHED = 9
CM_DISCONNECTED = 10
CM_DEVICE_REMOVAL = 11
CM_ADDR_CHANGE, CM_TIMEWAIT_EXIT = 14, 15

# verbs.h: enum ibv_event_type
EVENT_QP_FATAL, EVENT_QP_REQUEST_ERROR, EVENT_QP_ACCESS_ERROR = 1, 2, 3
EVENT_DEVICE_FATAL, EVENT_PORT_ACTIVE, EVENT_PORT_ERROR = 8, 9, 10

NODE_RNIC = 4

SEND_WR = struct.Struct("=QQQiiIIQI")
"""wr_id, next, sg_list, num_sge, opcode, send_flags, invalidate_rkey, rdma.remote_addr, rdma.rkey."""
SEND_WR_SIZE = 128
ATOMIC = struct.Struct("=QQQI")
"""atomic.remote_addr, atomic.compare_add, atomic.swap, atomic.rkey: they take the place of the fields ``rdma``."""
ATOMIC_AT = 40
RECV_WR = struct.Struct("=QQQi")
RECV_WR_SIZE = 32
SGE = struct.Struct("=QII")
WC = struct.Struct("=QiiIIIIII")
"""wr_id, status, opcode, vendor_err, byte_len, invalidated_rkey, qp_num, src_qp, wc_flags."""
WC_SIZE = 48

CM_ID_VERBS, CM_ID_QP, CM_ID_SOURCE, CM_ID_DESTINATION, CM_ID_PORT = 0, 24, 32, 160, 348
QP_NUM = 52
CHANNEL_FD = 8
MR_LKEY, MR_RKEY = 36, 40
CONTEXT_ASYNC_FD = 8 + 32 * 8 + 4
OPS_POLL_CQ, OPS_REQ_NOTIFY_CQ, OPS_POST_SEND, OPS_POST_RECV = (8 + 8 * i for i in (11, 12, 25, 26))


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Return the declaration of consecutive fields of one type."""
    return [(name, kind) for name in names.split()]


class QpCap(Structure):
    _fields_ = _fields(c_uint32, "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data")


class QpInitAttr(Structure):
    _fields_ = [
        *_fields(c_void_p, "qp_context send_cq recv_cq srq"),
        ("cap", QpCap),
        *_fields(c_int, "qp_type sq_sig_all"),
    ]


class ConnParam(Structure):
    _fields_ = [
        ("private_data", c_void_p),
        *_fields(c_ubyte, "private_data_len responder_resources initiator_depth"),
        *_fields(c_ubyte, "flow_control retry_count rnr_retry_count srq"),
        ("qp_num", c_uint32),
    ]


class CmEvent(Structure):
    _fields_ = [*_fields(c_void_p, "id listen_id"), *_fields(c_int, "event status"), ("conn", ConnParam)]


class DeviceAttr(Structure):
    _fields_ = [
        ("fw_ver", c_char * 64),
        *_fields(c_uint64, "node_guid sys_image_guid max_mr_size page_size_cap"),
        *_fields(c_uint32, "vendor_id vendor_part_id hw_ver"),
        *_fields(c_int, "max_qp max_qp_wr"),
        ("device_cap_flags", c_uint32),
        *_fields(c_int, "max_sge max_sge_rd max_cq max_cqe max_mr max_pd"),
        *_fields(c_int, "max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom"),
        *_fields(c_int, "max_ee_init_rd_atom atomic_cap"),
        ("rest", c_char * 248),
    ]


class AsyncEvent(Structure):
    """An event of a device. ``element`` is a union of pointers and, for events of ports, an int."""

    _fields_ = [("element", c_void_p), ("event_type", c_int)]


class Libraries(NamedTuple):
    verbs: ctypes.CDLL
    cm: ctypes.CDLL


_IBVERBS: dict[str, tuple[Any, list[Any]]] = {
    "ibv_get_device_list": (POINTER(c_void_p), [POINTER(c_int)]),
    "ibv_free_device_list": (None, [POINTER(c_void_p)]),
    "ibv_get_device_name": (ctypes.c_char_p, [c_void_p]),
    "ibv_query_device": (c_int, [c_void_p, POINTER(DeviceAttr)]),
    "ibv_alloc_pd": (c_void_p, [c_void_p]),
    "ibv_dealloc_pd": (c_int, [c_void_p]),
    "ibv_reg_mr": (c_void_p, [c_void_p, c_void_p, c_size_t, c_int]),
    "ibv_dereg_mr": (c_int, [c_void_p]),
    "ibv_create_comp_channel": (c_void_p, [c_void_p]),
    "ibv_destroy_comp_channel": (c_int, [c_void_p]),
    "ibv_create_cq": (c_void_p, [c_void_p, c_int, c_void_p, c_void_p, c_int]),
    "ibv_destroy_cq": (c_int, [c_void_p]),
    "ibv_get_cq_event": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_void_p)]),
    "ibv_ack_cq_events": (None, [c_void_p, ctypes.c_uint]),
    "ibv_get_async_event": (c_int, [c_void_p, POINTER(AsyncEvent)]),
    "ibv_ack_async_event": (None, [POINTER(AsyncEvent)]),
    "ibv_event_type_str": (ctypes.c_char_p, [c_int]),
    "ibv_wc_status_str": (ctypes.c_char_p, [c_int]),
}
_RDMACM: dict[str, tuple[Any, list[Any]]] = {
    "rdma_create_event_channel": (c_void_p, []),
    "rdma_destroy_event_channel": (None, [c_void_p]),
    "rdma_create_id": (c_int, [c_void_p, POINTER(c_void_p), c_void_p, c_int]),
    "rdma_destroy_id": (c_int, [c_void_p]),
    "rdma_bind_addr": (c_int, [c_void_p, c_void_p]),
    "rdma_listen": (c_int, [c_void_p, c_int]),
    "rdma_get_cm_event": (c_int, [c_void_p, POINTER(POINTER(CmEvent))]),
    "rdma_ack_cm_event": (c_int, [POINTER(CmEvent)]),
    "rdma_create_qp": (c_int, [c_void_p, c_void_p, POINTER(QpInitAttr)]),
    "rdma_destroy_qp": (None, [c_void_p]),
    "rdma_accept": (c_int, [c_void_p, POINTER(ConnParam)]),
    "rdma_reject": (c_int, [c_void_p, c_void_p, c_ubyte]),
    "rdma_connect": (c_int, [c_void_p, POINTER(ConnParam)]),
    "rdma_disconnect": (c_int, [c_void_p]),
    "rdma_resolve_addr": (c_int, [c_void_p, c_void_p, c_void_p, c_int]),
    "rdma_resolve_route": (c_int, [c_void_p, c_int]),
    "rdma_get_src_port": (c_uint16, [c_void_p]),
    "rdma_get_devices": (POINTER(c_void_p), [POINTER(c_int)]),
    "rdma_free_devices": (None, [POINTER(c_void_p)]),
}


def load() -> Libraries:
    """Load both libraries. Raise ``OSError``, which names the missing one. Calls keep the interpreter lock, since all
    are short."""
    verbs = ctypes.PyDLL("libibverbs.so.1", use_errno=True)
    cm = ctypes.PyDLL("librdmacm.so.1", use_errno=True)
    for library, table in ((verbs, _IBVERBS), (cm, _RDMACM)):
        for name, (result, arguments) in table.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    return Libraries(verbs, cm)


PollCq = ctypes.PYFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
ReqNotifyCq = ctypes.PYFUNCTYPE(c_int, c_void_p, c_int)
PostWork = ctypes.PYFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)


def pointer_at(address: int) -> int:
    return c_uint64.from_address(address).value


def int_at(address: int) -> int:
    return c_int.from_address(address).value


def uint_at(address: int) -> int:
    return c_uint32.from_address(address).value


def byte_at(address: int) -> int:
    return c_ubyte.from_address(address).value


def oserror(what: str) -> OSError:
    """Return the ``OSError`` of the last failed call."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def memory_of(data: bytes) -> ctypes.Array[c_char]:
    """Return memory with a copy of ``data``, of at least one byte, so that it has an address."""
    return ctypes.create_string_buffer(data, max(1, len(data)))


def pack_sockaddr(host: str, port: int) -> ctypes.Array[c_char]:
    """Return a ``sockaddr_in`` or ``sockaddr_in6`` in memory. An IPv6 scope may follow '%'."""
    info = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    family, address = info[0], info[4]
    if family == socket.AF_INET6:
        flow, scope = int(address[2]), int(address[3])  # type: ignore[misc]
        raw = socket.inet_pton(family, str(address[0]).split("%", 1)[0])
        return memory_of(struct.pack("=HHI16sI", family, socket.htons(port), flow, raw, scope))
    return memory_of(struct.pack("=HH4s8x", family, socket.htons(port), socket.inet_aton(str(address[0]))))


def unpack_sockaddr(address: int) -> tuple[str, int]:
    """Return host and port of the sockaddr at this memory address."""
    raw = ctypes.string_at(address, 28)
    family = int.from_bytes(raw[:2], "little")
    port = int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntoa(raw[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, raw[8:24]), port
    return "", port

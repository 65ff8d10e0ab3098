"""All differences between devices, in one place: start here to support a new NIC."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from smbdirect.providers.base import Capabilities
from smbdirect.providers.verbs import abi
from smbdirect.providers.verbs.thread import VerbsThread

SEND_QUEUE = 512
RECEIVE_QUEUE = 512
MAX_SGE = 16
INLINE = 128
MAX_TRANSFER = 1 << 30
SIW_VENDOR = 0x626D74
"""The vendor_id that Linux's siw reports."""
_MAPPED_DOORBELLS = frozenset((
    "be2net", "bnxt_en", "bnxt_re", "erdma", "hns3", "hns_roce_hw_v2", "i40e", "ib_mthca", "ice", "irdma", "mana",
    "mlx4_core", "mlx5_core", "qede", "vmw_pvrdma",
))  # fmt: skip
"""Kernel drivers of devices whose library posts work and requests events through mapped memory only (rdma-core 44).

The libraries of rxe, siw, hfi1 and qib use write(2). That of cxgb4 may do so when it runs out of doorbells.
"""


@dataclass(frozen=True, slots=True)
class PortState:
    """The state of one port, from sysfs."""

    device: str
    port: int
    active: bool
    link_layer: str
    netdevs: tuple[str, ...]
    iwarp: bool


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def ports(root: Path = Path("/sys/class/infiniband")) -> list[PortState]:
    """Return all ports of all RDMA devices of this host, from sysfs (no library is needed)."""
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else ():
        iwarp = _read(device / "node_type").startswith(str(abi.NODE_RNIC))
        listing = device / "ports"
        for port in sorted(listing.iterdir()) if listing.is_dir() else ():
            names = {_read(entry) for entry in (port / "gid_attrs" / "ndevs").glob("*")} - {""}
            parent = _read(device / "parent")
            if parent:
                names.add(parent)
            net = device / "device" / "net"
            if not names and net.is_dir():
                names = {entry.name for entry in net.iterdir()}
            found.append(
                PortState(
                    device.name,
                    int(port.name),
                    _read(port / "state").startswith("4"),
                    _read(port / "link_layer"),
                    tuple(sorted(names)),
                    iwarp,
                )
            )
    return found


def is_active(name: str, port: int, root: Path = Path("/sys/class/infiniband")) -> bool:
    """Return whether the port has a link."""
    return _read(root / name / "ports" / str(port) / "state").startswith("4")


def posts_by_write(name: str, root: Path = Path("/sys/class/infiniband")) -> bool:
    """Return whether posting work needs a write(2), which only the verbs thread may do (``thread``).

    The kernel driver of the underlying device determines this. Software devices (rxe, siw) have none. An unknown driver
    counts as one that writes: that is slower, but correct for all drivers.
    """
    try:
        driver = os.path.basename(os.readlink(root / name / "device" / "driver"))
    except OSError:
        return True
    return driver not in _MAPPED_DOORBELLS


def why_unavailable() -> str | None:
    """Return None if verbs can be used here, else the reason and the remedy."""
    if not ports():
        return "no RDMA device (a NIC's driver makes one, or `rdma link add rxe0 type rxe netdev eth0`)"
    try:
        abi.load()
    except OSError as error:
        return f"{error}: apt-get install libibverbs1 librdmacm1 ibverbs-providers"
    if not os.path.exists("/dev/infiniband/rdma_cm"):
        return "no /dev/infiniband/rdma_cm: modprobe rdma_ucm"
    if not os.access("/dev/infiniband/rdma_cm", os.R_OK | os.W_OK):
        return "no permission on /dev/infiniband/rdma_cm: run as root, or give the user rights on it"
    return None


class Device:
    """One opened device: its limits and the entries of its operations table."""

    def __init__(self, libraries: abi.Libraries, context: int, thread: VerbsThread) -> None:
        self.libraries = libraries
        self.context = context
        self.thread = thread
        self.name = libraries.verbs.ibv_get_device_name(abi.pointer_at(context)).decode()
        attributes = abi.DeviceAttr()
        if libraries.verbs.ibv_query_device(context, ctypes.byref(attributes)):
            raise abi.oserror(f"{self.name}: ibv_query_device")
        self.iwarp = any(port.iwarp for port in ports() if port.device == self.name)
        self.posts_by_write = posts_by_write(self.name)
        """Whether ``post_send``, ``post_recv`` and ``req_notify_cq`` may be called only on ``thread``."""
        self.read_sink_needs_remote_write = self.iwarp and attributes.vendor_id != SIW_VENDOR
        """Whether the sink of a Read needs the right REMOTE_WRITE. An iWARP NIC checks the sink of its own Reads as if
        the peer wrote to it (RFC 5040 5.2.1). The sink's token is on the wire. So it is registered for one Read only,
        not as part of a pool, and each connection has a protection domain of its own, in which no other connection can
        name it. siw requires no remote right."""
        self.copies_if_signalled = attributes.vendor_id == SIW_VENDOR
        """Whether only what is signalled has left its memory at its completion. siw (Linux 6.12, ``siw_qp_prepare_tx``)
        gives TCP the pages of other Writes and Sends from 4 KiB on, and completes what follows when TCP has taken it:
        the data may be on its way, or be sent again, after the memory has got other content."""
        self.max_read_depth = max(1, min(attributes.max_qp_rd_atom, 32))
        """Reads that the peer may have outstanding at us."""
        self.max_initiator_depth = max(1, min(attributes.max_qp_init_rd_atom or attributes.max_qp_rd_atom, 32))
        """Reads that we may have outstanding at the peer."""
        send_sge = max(1, min(attributes.max_sge, MAX_SGE))
        self.capabilities = Capabilities(
            name="verbs",
            max_send_sge=send_sge,
            # An iWARP Read has exactly one sink (RFC 5040 4.4).
            max_read_sge=1 if self.iwarp else max(1, min(attributes.max_sge_rd or 1, send_sge)),
            max_transfer=MAX_TRANSFER,
            max_message=MAX_TRANSFER,
            # Inline data is copied when the device gets the request. If the thread posts it, that is after ``post`` has
            # returned.
            max_inline=0 if self.posts_by_write else INLINE,
            max_send_queue=max(16, min(SEND_QUEUE, attributes.max_qp_wr)),
            max_receive_queue=max(16, min(RECEIVE_QUEUE, attributes.max_qp_wr)),
            max_outstanding_reads=self.max_initiator_depth,
            requires_registration=True,
            # A plain user-space region cannot be invalidated: that needs memory windows, which siw does not have.
            regions_invalidatable=False,
            registers_files=False,
            atomics=attributes.atomic_cap != 0,
        )
        self.poll_cq = abi.PollCq(abi.pointer_at(context + abi.OPS_POLL_CQ))
        self.req_notify_cq = abi.ReqNotifyCq(abi.pointer_at(context + abi.OPS_REQ_NOTIFY_CQ))
        self.post_send = abi.PostWork(abi.pointer_at(context + abi.OPS_POST_SEND))
        self.post_recv = abi.PostWork(abi.pointer_at(context + abi.OPS_POST_RECV))
        self.async_fd = abi.int_at(context + abi.CONTEXT_ASYNC_FD)

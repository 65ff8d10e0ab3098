"""The binary interface in ``abi`` against the installed headers of libibverbs and librdmacm."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from smbdirect.providers.verbs import abi

EXPECTED = {
    "sizeof(struct ibv_send_wr)": abi.SEND_WR_SIZE,
    "offsetof(struct ibv_send_wr, num_sge)": 24,
    "offsetof(struct ibv_send_wr, opcode)": 28,
    "offsetof(struct ibv_send_wr, send_flags)": 32,
    "offsetof(struct ibv_send_wr, invalidate_rkey)": 36,
    "offsetof(struct ibv_send_wr, wr.rdma.remote_addr)": 40,
    "offsetof(struct ibv_send_wr, wr.rdma.rkey)": 48,
    "offsetof(struct ibv_send_wr, wr.atomic.remote_addr)": abi.ATOMIC_AT,
    "offsetof(struct ibv_send_wr, wr.atomic.compare_add)": abi.ATOMIC_AT + 8,
    "offsetof(struct ibv_send_wr, wr.atomic.swap)": abi.ATOMIC_AT + 16,
    "offsetof(struct ibv_send_wr, wr.atomic.rkey)": abi.ATOMIC_AT + 24,
    "sizeof(struct ibv_recv_wr)": abi.RECV_WR_SIZE,
    "offsetof(struct ibv_recv_wr, num_sge)": 24,
    "sizeof(struct ibv_sge)": abi.SGE.size,
    "sizeof(struct ibv_wc)": abi.WC_SIZE,
    "offsetof(struct ibv_wc, invalidated_rkey)": 24,
    "offsetof(struct ibv_wc, wc_flags)": 36,
    "offsetof(struct ibv_context, async_fd)": abi.CONTEXT_ASYNC_FD,
    "offsetof(struct ibv_context, ops.poll_cq)": abi.OPS_POLL_CQ,
    "offsetof(struct ibv_context, ops.req_notify_cq)": abi.OPS_REQ_NOTIFY_CQ,
    "offsetof(struct ibv_context, ops.post_send)": abi.OPS_POST_SEND,
    "offsetof(struct ibv_context, ops.post_recv)": abi.OPS_POST_RECV,
    "offsetof(struct ibv_mr, lkey)": abi.MR_LKEY,
    "offsetof(struct ibv_mr, rkey)": abi.MR_RKEY,
    "offsetof(struct ibv_qp, qp_num)": abi.QP_NUM,
    "offsetof(struct ibv_comp_channel, fd)": abi.CHANNEL_FD,
    "offsetof(struct rdma_cm_id, verbs)": abi.CM_ID_VERBS,
    "offsetof(struct rdma_cm_id, qp)": abi.CM_ID_QP,
    "offsetof(struct rdma_cm_id, route.addr.src_addr)": abi.CM_ID_SOURCE,
    "offsetof(struct rdma_cm_id, route.addr.dst_addr)": abi.CM_ID_DESTINATION,
    "offsetof(struct rdma_cm_id, port_num)": abi.CM_ID_PORT,
    "offsetof(struct rdma_cm_event, param.conn)": abi.CmEvent.conn.offset,
    "sizeof(struct rdma_conn_param)": ctypes.sizeof(abi.ConnParam),
    "sizeof(struct ibv_qp_init_attr)": ctypes.sizeof(abi.QpInitAttr),
    "offsetof(struct ibv_device_attr, max_qp_init_rd_atom)": abi.DeviceAttr.max_qp_init_rd_atom.offset,
    "offsetof(struct ibv_device_attr, atomic_cap)": abi.DeviceAttr.atomic_cap.offset,
    "offsetof(struct ibv_device_attr, vendor_id)": abi.DeviceAttr.vendor_id.offset,
    "sizeof(struct ibv_async_event)": ctypes.sizeof(abi.AsyncEvent),
    "offsetof(struct ibv_async_event, element.port_num)": abi.AsyncEvent.element.offset,
    "offsetof(struct ibv_async_event, event_type)": abi.AsyncEvent.event_type.offset,
    "IBV_EVENT_QP_FATAL": abi.EVENT_QP_FATAL,
    "IBV_EVENT_QP_REQ_ERR": abi.EVENT_QP_REQUEST_ERROR,
    "IBV_EVENT_QP_ACCESS_ERR": abi.EVENT_QP_ACCESS_ERROR,
    "IBV_EVENT_DEVICE_FATAL": abi.EVENT_DEVICE_FATAL,
    "IBV_EVENT_PORT_ACTIVE": abi.EVENT_PORT_ACTIVE,
    "IBV_EVENT_PORT_ERR": abi.EVENT_PORT_ERROR,
    "IBV_WR_SEND_WITH_INV": abi.WR_SEND_INV,
    "IBV_WR_RDMA_READ": abi.WR_READ,
    "IBV_WR_ATOMIC_CMP_AND_SWP": abi.WR_COMPARE_SWAP,
    "IBV_WR_ATOMIC_FETCH_AND_ADD": abi.WR_FETCH_ADD,
    "IBV_ACCESS_REMOTE_ATOMIC": abi.ACCESS_REMOTE_ATOMIC,
    "IBV_ATOMIC_NONE": 0,
    "IBV_WC_WITH_INV": abi.WC_WITH_INV,
    "IBV_SEND_INLINE": abi.SEND_INLINE,
    "RDMA_CM_EVENT_DEVICE_REMOVAL": abi.CM_DEVICE_REMOVAL,
    "RDMA_CM_EVENT_TIMEWAIT_EXIT": abi.CM_TIMEWAIT_EXIT,
    "RDMA_PS_TCP": abi.PS_TCP,
}


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/rdma/rdma_cma.h").exists(),
    reason="needs a C compiler and librdmacm-dev",
)
def test_offsets_are_those_of_the_headers(tmp_path: Path) -> None:
    lines = [f'printf("%ld\\n", (long)({expression}));' for expression in EXPECTED]
    source = tmp_path / "abi.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n"
        "int main(void){" + "\n".join(lines) + "return 0;}\n"
    )
    program = tmp_path / "abi"
    subprocess.run(["cc", "-o", program, source], check=True)
    values = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(EXPECTED, map(int, values), strict=True)) == EXPECTED

"""What the doctor is told about a machine, and what it answers."""

from __future__ import annotations

from smb3server.doctor.patient import Result, Target
from smb3server.doctor.share import consult
from tests.lab.scene import Scene


async def examined(acted: Scene, user: str = "u", password: str = "pw", port: int | None = None) -> Result:
    rdma_port = port or acted.service.fabrics.listeners[0][1].address[1]
    tcp_port = acted.service.listeners[0].address[1]
    return await consult(Target(acted.host, tcp_port, "data", user, password, ("iwarp",), rdma_port))


FREE_TO_BIND = {"proc/sys/net/ipv4/ip_unprivileged_port_start": "0\n"}


MODULES = {"sys/module/rdma_ucm/x": "", "sys/module/ib_uverbs/x": ""}

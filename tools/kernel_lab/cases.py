"""The cases that the kernel client runs, and the results that they must have."""

from __future__ import annotations

from typing import NamedTuple

DISORDER = "delay 1ms duplicate 1% reorder 10% 50%"


FULL_QUEUE = "failed to drain recv queue: -12"
"""cifs of 6.12 gives its queue pair room for the receives that it posts (255 with 255 credits), and none for the
additional one that ``ib_drain_rq`` posts when it closes. If none was flushed yet, rxe refuses that one, because its
queue then holds exactly 255.
"""

SOCKET_ENDED = r"Error -\d+ sending data on socket"
"""docs/kernel-lab.md: the client does not repeat on another channel a request that failed on a socket ended by TCP."""


NOT_SENT = "Error -[0-9]+ sending data on socket to server"
"""docs/kernel-lab.md: a write that was not sent completely before the server ended is not repeated."""

STUCK = r"register_mr_done:\d+ status=5"
"""docs/kernel-lab.md: the SMB Direct connection ended while the client registered memory; the client never
reconnects.
"""


class Case(NamedTuple):
    """One case of the kernel lab."""

    name: str
    protocol: str
    """siw (SMB Direct over iWARP), rxe (over RoCEv2) or tcp."""
    mount_options: str = ""
    credits: int = 255
    """SMB Direct credits that the client requests and grants."""
    rdma_transfers: bool = False
    """Whether READ and WRITE must travel by RDMA: Linux sends them inline when it signs or encrypts."""
    invalidation: bool = False
    """Whether Send with Invalidate must be used: RDMA_V1_INVALIDATE exists from dialect 3.0.2 on."""
    encrypted: bool = False
    verbs: bool = False
    """The server runs inside the guest, on the kernel's RDMA device, instead of on the host."""
    tap: bool = False
    """Guest and host are connected by a tap instead of QEMU's user network, which cannot carry RoCE."""
    nics: int = 1
    """Number of taps, each with a network of its own."""
    mtu: int = 1500
    """MTU of the guest's interface."""
    netem: str = ""
    """Arguments of ``tc`` for the packets that the guest sends, from the second session on."""
    client_defect: str = ""
    """Log pattern of a defect of the client that makes the case fail now and then; the case is then run again."""
    rxe_retry: bool = False
    """The guest's rxe correctly repeats its send queue after a packet loss (docs/rocev2.md)."""
    captured: bool = True
    """A session of the case is captured; load is not."""
    failure: str = ""
    """The server's failure in mid-write: kill, stop (SIGSTOP), cut (from etcd), clock (set; all in the guest)."""
    cluster: bool = False
    """After the failure another node takes over; without it the same server is started again."""
    shows: str = ""
    """Additional results of the script for the judge: ``port`` (before, while and after a port is down),
    ``selfcheck``.
    """
    reconnects: bool = False
    """The client loses its connection on purpose, and its kernel may log that."""
    namespace: bool = False
    """The server has a namespace (DFS) with links to its share, and the client mounts that."""
    processes: bool = False
    """The server has two processes, and the client mounts a share of each by one name."""
    mounted: bool = True
    """The kernel's client takes part."""
    program: str = ""
    """A C program of guest/ that the case's script runs."""
    posix: bool = False
    """The server's share has the POSIX extensions."""
    compressed: bool = False
    """The server's share asks for compression, and the client's messages have to be compressed."""
    snapshots: bool = False
    """The share has a snapshot, ``server.SNAPSHOT``, which the case mounts."""
    conformance: bool = False
    """``smb3server conformance`` runs on the host against ksmbd in the guest, instead of a client in the guest."""

    @property
    def outages(self) -> bool:
        """Whether links of a client with several of them go down in the case."""
        return self.nics > 1

    @property
    def argument(self) -> str:
        """The case as an argument of guest/cases.sh."""
        return f"{self.name}:{self.protocol}:{self.credits}:{self.mtu}:{self.netem}:{self.mount_options}"

    @property
    def boot(self) -> tuple[bool, bool, int, str, bool, int, str, str, str, bool, bool]:
        """A key: cases with the same value can share a boot of the guest."""
        cluster = self.name if self.cluster or self.conformance else ""
        return (
            self.verbs,
            self.tap,
            self.nics,
            self.fabric,
            self.rxe_retry,
            self.mtu,
            self.failure,
            cluster,
            self.keys,
            self.namespace,
            self.processes,
        )

    @property
    def keys(self) -> str:
        """Lines for the share's section of the configuration. Empty: the command line is enough."""
        if self.posix:
            return "posix = true\n"
        if self.compressed:
            return "compress = true\n"
        return 'snapshots = ".snapshots/@GMT-%Y.%m.%d-%H.%M.%S"\n' if self.snapshots else ""

    @property
    def fabric(self) -> str:
        """The fabric that the server on the host offers besides TCP."""
        return "roce" if self.protocol == "rxe" else "iwarp"


def _failing(name: str, protocol: str, failure: str, cluster: bool = False) -> Case:
    """Return a case that runs guest/persist.sh."""
    return Case(
        name,
        protocol,
        failure=failure,
        cluster=cluster,
        reconnects=True,
        program="persist",
        client_defect=NOT_SENT if protocol == "tcp" else f"{NOT_SENT}|{STUCK}",
    )


CASES = (
    Case("siw", "siw", rdma_transfers=True, invalidation=True, tap=True),
    Case("tcp", "tcp", tap=True),
    Case("siw-sign", "siw", "sign", tap=True),
    Case("siw-seal", "siw", "seal", encrypted=True, tap=True),
    Case("siw-16-credits", "siw", credits=16, rdma_transfers=True, invalidation=True, tap=True),
    Case("siw-vers-3.0", "siw", "vers=3.0", rdma_transfers=True, tap=True),
    Case("siw-vers-3.0.2", "siw", "vers=3.0.2", rdma_transfers=True, invalidation=True, tap=True),
    Case("tcp-sign", "tcp", "sign", tap=True),
    Case("tcp-seal", "tcp", "seal", encrypted=True, tap=True),
    Case("compress-tcp", "tcp", "compress", compressed=True, tap=True),
    Case("dfs", "tcp", tap=True, namespace=True),
    Case("dfs-siw", "siw", rdma_transfers=True, invalidation=True, tap=True, namespace=True),
    Case("processes", "tcp", tap=True, processes=True),
    Case("two-clients", "siw", rdma_transfers=True, invalidation=True, program="stress", tap=True),
    Case("two-clients-tcp", "tcp", program="stress", tap=True),
    Case("stress", "siw", captured=False, program="stress", tap=True),
    Case("stress-tcp", "tcp", captured=False, program="stress", tap=True),
    Case("posix-tcp", "tcp", "posix", program="posix", posix=True, tap=True),
    Case("posix-siw", "siw", "posix", rdma_transfers=True, invalidation=True, program="posix", posix=True, tap=True),
    Case("rxe", "rxe", rdma_transfers=True, invalidation=True, tap=True, client_defect=FULL_QUEUE),
    Case("rxe-sign", "rxe", "sign", tap=True, client_defect=FULL_QUEUE),
    Case("rxe-seal", "rxe", "seal", encrypted=True, tap=True, client_defect=FULL_QUEUE),
    Case("rxe-mtu9000", "rxe", rdma_transfers=True, invalidation=True, tap=True, mtu=9000, client_defect=FULL_QUEUE),
    Case(
        "rxe-netem", "rxe", rdma_transfers=True, invalidation=True, tap=True, netem=DISORDER, client_defect=FULL_QUEUE
    ),
    Case(
        "rxe-loss",
        "rxe",
        rdma_transfers=True,
        invalidation=True,
        tap=True,
        netem=f"{DISORDER} loss 1%",
        rxe_retry=True,
        client_defect=FULL_QUEUE,
    ),
    Case("snapshot-tcp", "tcp", tap=True, snapshots=True, captured=False),
    Case("snapshot-siw", "siw", tap=True, snapshots=True, captured=False),
    Case("multichannel-tcp", "tcp", tap=True, nics=2, captured=False, reconnects=True, program="transfer"),
    Case("multichannel-iwarp", "siw", tap=True, nics=2, captured=False, reconnects=True, program="transfer"),
    Case(
        "multichannel-mixed",
        "siw",
        tap=True,
        nics=2,
        captured=False,
        reconnects=True,
        program="transfer",
        client_defect=SOCKET_ENDED,
    ),
    _failing("persist-restart", "tcp", "kill"),
    _failing("persist-restart-rdma", "siw", "kill"),
    _failing("persist-takeover", "tcp", "kill", cluster=True),
    _failing("persist-takeover-rdma", "siw", "kill", cluster=True),
    _failing("persist-stopped", "tcp", "stop", cluster=True),
    _failing("persist-stopped-rdma", "siw", "stop", cluster=True),
    _failing("persist-cut", "tcp", "cut", cluster=True),
    Case("clock-step", "tcp", failure="clock", reconnects=True, verbs=True, program="persist"),
    Case("verbs-siw", "siw", rdma_transfers=True, invalidation=True, verbs=True),
    # Whatever siw completed before it arrived is seen.
    Case("verbs-siw-delay", "siw", rdma_transfers=True, invalidation=True, verbs=True, netem="delay 5ms"),
    Case("verbs-rxe", "rxe", rdma_transfers=True, invalidation=True, verbs=True, client_defect=FULL_QUEUE),
    Case("verbs-port-siw", "siw", verbs=True, captured=False, shows="port", reconnects=True),
    Case("verbs-port-rxe", "rxe", verbs=True, captured=False, shows="port", mounted=False),
    Case("verbs-churn-siw", "siw", verbs=True, captured=False, mounted=False),
    Case("verbs-churn-rxe", "rxe", verbs=True, captured=False, mounted=False),
    Case("verbs-atomics-siw", "siw", verbs=True, captured=False, mounted=False),
    Case("verbs-atomics-rxe", "rxe", verbs=True, captured=False, mounted=False),
    Case("verbs-check-siw", "siw", verbs=True, captured=False, mounted=False, shows="selfcheck"),
    Case("verbs-check-rxe", "rxe", verbs=True, captured=False, mounted=False, shows="selfcheck"),
    Case("conformance-ksmbd-siw", "siw", conformance=True),
    Case("conformance-ksmbd-rxe", "rxe", mtu=9000, conformance=True),
)


def select(names: list[str]) -> list[Case]:
    """Return the named cases, or all. Raises ``ValueError`` for an unknown name."""
    known = {case.name: case for case in CASES}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no case {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else list(CASES)

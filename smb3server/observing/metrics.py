"""The state of a server as metrics for Prometheus.

Nothing is counted for this module alone, except for what ``dispatch.measuring`` and ``loop_lag`` measure. A scrape adds
up what the tables of the server have. Names that begin with ``windows_`` and ``samba_`` are those of windows_exporter
and samba_exporter, for values of the same meaning: their dashboards show this server, too. windows_exporter has renamed
some, so these are there by both names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import UNSET
from prometheus_client import GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from smb3server import __version__
from smb3server.dispatch.measuring import CLASSES, OTHERS, READS, WRITES
from smb3server.state.events import Carried, fabric_of, status_name
from smb3server.status import cluster_state, resources
from smb3server.status.cluster_state import ClusterState
from smb3server.wire.compression import NAMES
from smb3server.wire.header import Command

if TYPE_CHECKING:
    from smb3server.observing.loop_lag import LoopLag
    from smb3server.server.server import Server

_NONE = (0.0, 0.0, 0.0)
_OPERATIONS = (
    "sends",
    "receives",
    "rdma_reads",
    "rdma_writes",
    "registrations",
    "remote_invalidations_sent",
    "remote_invalidations_received",
)
"""Counters of SMB Direct that are shown."""
_BOUNDS = [f"{2.0**size / 1e6:.9g}" for size in range(CLASSES - 1)] + ["+Inf"]


class Audit(Protocol):
    """The audit's file."""

    written: int
    lost: int


class ServerCollector(Collector):
    """Makes the metrics of one server, on the thread of its event loop."""

    def __init__(
        self,
        server: Server,
        lag: LoopLag | None = None,
        audit: Audit | None = None,
        cluster: ClusterState | None = None,
    ) -> None:
        self._server = server
        self._lag = lag
        self._audit = audit
        self._cluster = cluster

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return all metrics. See ``Collector``."""
        yield from self._server_itself()
        yield from self._connections()
        yield from self._compression()
        yield from self._refusals()
        yield from self._requests()
        yield from self._shares()
        yield from self._as_samba()
        if self._lag is not None:
            yield HistogramMetricFamily(
                "smb3server_event_loop_lag_seconds",
                "How late timers of the event loop are",
                _buckets(self._lag.classes),
                self._lag.seconds,
            )
        if self._cluster is not None:
            yield from cluster_state.metrics(self._cluster.report())
        if self._audit is not None:
            yield _counter("smb3server_audit_records", "Records of the audit in its file", self._audit.written)
            yield _counter("smb3server_audit_lost", "Records of the audit that were lost", self._audit.lost)

    def _server_itself(self) -> Iterator[Metric]:
        server = self._server
        info = GaugeMetricFamily("smb3server_info", "Version and fabrics of the server", labels=["version", "rdma"])
        served = sorted({choice.fabric for choice in server.rdma_choices if choice.served})
        info.add_metric([__version__, ",".join(served) or "off"], 1)
        yield info
        yield GaugeMetricFamily(
            "smb3server_start_time_seconds", "Start of the server, in seconds since 1970", server.server_start_time
        )

    def _connections(self) -> Iterator[Metric]:
        """What connections carry: those in use, and those that have ended since the start."""
        server = self._server
        carried = {fabric: _copy(total) for fabric, total in server.events.counts.carried.items()}
        carried.setdefault("tcp", Carried())
        now: Counter[str] = Counter()
        credits: Counter[str] = Counter()
        pending = 0
        for connection in server.connection_list:
            fabric = fabric_of(connection)
            now[fabric] += 1
            credits[fabric] += connection.command_sequence_window.available
            pending += connection.host.pending_requests
            found, total = connection.transport.traffic, carried.setdefault(fabric, Carried())
            total.received += found.inline_bytes_received
            total.sent += found.inline_bytes_sent
            total.rdma_received += found.rdma_read_bytes
            total.rdma_sent += found.rdma_write_bytes
            total.retransmissions += found.retransmissions
            if connection.is_smb_direct:
                total.operations.update(connection.transport.counters)
        yield _gauges("smb3server_connections", "Connections", "fabric", {name: now[name] for name in carried})
        yield _counters(
            "smb3server_connections_ended",
            "Connections that have ended",
            "fabric",
            {name: total.connections for name, total in carried.items()},
        )
        yield _gauges(
            "smb3server_credits", "SMB2 credits that clients hold", "fabric", {name: credits[name] for name in carried}
        )
        inline = CounterMetricFamily("smb3server_message_bytes", "Bytes in messages", labels=["fabric", "direction"])
        moved = CounterMetricFamily(
            "smb3server_rdma_bytes", "Bytes moved by RDMA Read and Write", labels=["fabric", "direction"]
        )
        done = CounterMetricFamily(
            "smb3server_smb_direct_operations", "Operations of SMB Direct", labels=["fabric", "operation"]
        )
        for fabric, total in carried.items():
            inline.add_metric([fabric, "received"], total.received)
            inline.add_metric([fabric, "sent"], total.sent)
            if fabric != "tcp":
                moved.add_metric([fabric, "received"], total.rdma_received)
                moved.add_metric([fabric, "sent"], total.rdma_sent)
            for name in _OPERATIONS if total.operations else ():
                done.add_metric([fabric, name], total.operations[name])
        yield inline
        yield moved
        yield done
        yield _counters(
            "smb3server_retransmissions",
            "Segments or packets sent again",
            "fabric",
            {name: total.retransmissions for name, total in carried.items()},
        )
        yield _gauge("smb3server_pending_requests", "Requests that wait for something", pending)

    def _compression(self) -> Iterator[Metric]:
        """What travelled compressed since the start."""
        counts = self._server.compressed
        agreed = Counter(c.compression.algorithms[0] for c in self._server.connection_list if c.compression is not None)
        yield _gauges(
            "smb3server_compressing_connections",
            "Connections that may compress",
            "algorithm",
            {name: agreed[number] for number, name in NAMES.items()},
        )
        for name, about, received, sent in (
            ("smb3server_compressed_bytes", "Bytes that travelled compressed", counts.received, counts.sent),
            (
                "smb3server_compressed_wire_bytes",
                "What these took on the way",
                counts.received_compressed,
                counts.sent_compressed,
            ),
        ):
            yield _counters(name, about, "direction", {"received": received, "sent": sent})

    def _refusals(self) -> Iterator[Metric]:
        counts = self._server.events.counts
        yield _counter("smb3server_logons", "Logons that succeeded", counts.logons)
        yield _counters("smb3server_logon_failures", "Logons that failed", "reason", counts.refused_logons)
        yield _counters("smb3server_share_refusals", "Tree connects that failed", "reason", counts.refused_shares)
        yield _counter("smb3server_denied_requests", "Requests that were refused for lack of rights", counts.denied)
        yield _counters(
            "smb3server_sessions_ended",
            "Sessions that ended while their connection went on",
            "how",
            {
                "logoff": counts.logoffs,
                "idle": counts.idle_sessions,
                "other": counts.ended_sessions - counts.idle_sessions,
            },
        )
        yield _counter("smb3server_connections_refused", "Connections turned away", counts.refused_connections)

    def _requests(self) -> Iterator[Metric]:
        timings = self._server.measuring.timings
        if timings is None:
            return
        family = HistogramMetricFamily(
            "smb3server_request_duration_seconds",
            "Time from the beginning of the work on a request to its answer",
            labels=["command"],
        )
        for command in Command:
            classes = timings.classes[command]
            if any(classes):
                family.add_metric([command.name.lower()], _buckets(classes), timings.seconds[command])
        yield family
        errors = CounterMetricFamily("smb3server_request_errors", "Requests that failed", labels=["command", "status"])
        for (number, status), count in timings.errors.items():
            errors.add_metric([Command(number).name.lower(), status_name(status)], count)
        yield errors

    def _shares(self) -> Iterator[Metric]:
        server = self._server
        shares = [share for share in resources.shares(server) if share.type == "disk"]
        opens = {share.share: share.open_count for share in shares}
        trees = {share.share: share.connects for share in shares}
        sent = {share.share: share.bytes_read for share in shares}
        received = {share.share: share.bytes_written for share in shares}
        sessions = Counter(
            "guest" if session.is_guest else "anonymous" if session.is_anonymous else "user"
            for session in server.sessions.by_id.values()
            if session.identity is not None
        )
        yield _gauges(
            "smb3server_sessions", "Sessions", "kind", {kind: sessions[kind] for kind in ("user", "guest", "anonymous")}
        )
        operations, delayed = server.flows.totals
        yield _gauge("smb3server_storage_flows", "Logical flows of storage quality of service", len(server.flows.by_id))
        yield _counter("smb3server_storage_flow_operations", "Reads and writes of logical flows", operations)
        yield _counter("smb3server_storage_flow_delays", "Reads and writes that waited for their flow", delayed)
        yield _gauge("smb3server_opens", "Opens, of files and of pipes", len(server.opens.by_id))
        prefix = "windows_smb_server_shares_"
        for name in ("open_files", "current_open_file_count"):
            yield _gauges(prefix + name, "Open files on the share", "share", opens)
        for name in ("tree_connects", "tree_connect_count"):
            yield _gauges(prefix + name, "Tree connects to the share", "share", trees)
        yield self._durable_opens(opens)
        yield _counters(prefix + "received_bytes", "Bytes that clients wrote to the share", "share", received)
        yield _counters(prefix + "sent_bytes", "Bytes that clients read from the share", "share", sent)
        late = {share.share: share.storage for share in shares if share.storage is not UNSET}
        if late:
            yield _gauges(
                "smb3server_storage_waiting_requests",
                "Requests that wait for the share's storage",
                "share",
                {share: storage.requests for share, storage in late.items()},
            )
            yield _gauges(
                "smb3server_storage_silent_seconds",
                "For how long the share's storage has not answered",
                "share",
                {share: storage.seconds for share, storage in late.items()},
            )
        recycled = {share.share: share.recycle for share in shares if share.recycle is not UNSET}
        if recycled:
            yield _gauges(
                "smb3server_recycle_folder_bytes",
                "Bytes in the share's recycle folder when it was looked at last",
                "share",
                {name: found.bytes for name, found in recycled.items()},
            )
            yield _counters(
                "smb3server_recycle_folder_removed_files",
                "Files removed from the share's recycle folder by age or for room",
                "share",
                {name: found.removed_files for name, found in recycled.items()},
            )
            yield _counters(
                "smb3server_recycle_folder_removed_bytes",
                "Bytes of these files",
                "share",
                {name: found.removed_bytes for name, found in recycled.items()},
            )
        yield from self._requests_of_shares(list(opens))

    def _durable_opens(self, names: Iterable[str]) -> Metric:
        found = GaugeMetricFamily(
            "smb3server_share_durable_opens", "Opens that outlive their connection", labels=["share", "kind"]
        )
        kinds = Counter(
            (opened.tree.share.name, opened.durable.kind)
            for opened in self._server.opens.by_id.values()
            if opened.durable is not None
        )
        for name in names:
            for kind in ("durable", "resilient", "persistent"):
                found.add_metric([name, kind], kinds[name, kind])
        return found

    def _requests_of_shares(self, names: Sequence[str]) -> Iterator[Metric]:
        """How many requests the shares have had, how long they took, and how many are under way."""
        measuring, prefix = self._server.measuring, "windows_smb_server_shares_"
        timings = measuring.timings
        if timings is None:
            return
        waiting = measuring.waiting()
        queue = {name: waiting[name, READS] + waiting[name, WRITES] for name in names}
        pending = {name: queue[name] + waiting[name, OTHERS] for name in names}
        yield _gauges(prefix + "current_data_queue_length", "READs and WRITEs under way", "share", queue)
        yield _gauges(prefix + "current_pending_requests", "Requests under way", "share", pending)
        for index, kind in ((READS, "read"), (WRITES, "write"), (OTHERS, "metadata")):
            seconds = {name: timings.seconds_of_shares.get(name, _NONE)[index] for name in names}
            yield _counters(prefix + f"{kind}_seconds", f"Time of requests on the share: {kind}", "share", seconds)
            counts = {name: timings.of_shares[name][index] if name in timings.of_shares else 0 for name in names}
            for name in (f"{kind}_requests", f"{kind}_requests_count"):
                yield _counters(prefix + name, f"Requests on the share: {kind}", "share", counts)
        for name in ("files_opened", "files_opened_count"):
            yield _counters(
                prefix + name, "Files opened on the share", "share", {share: timings.opened[share] for share in names}
            )

    def _as_samba(self) -> Iterator[Metric]:
        server = self._server
        sessions = [session for session in server.sessions.by_id.values() if session.identity is not None]
        users = {session.identity.owner for session in sessions if session.identity is not None}
        clients = {connection.client_name for session in sessions for connection in session.channel_list}
        used = {tree.share.name for session in sessions for tree in session.tree_connect_table.values()}
        files = {id(opened.file) for opened in server.opens.by_id.values() if opened.file is not None}
        yield _gauge("samba_server_up", "The server answers", 1)
        yield _gauge("samba_client_count", "Clients that use the server", len(clients))
        yield _gauge("samba_individual_user_count", "Users who have a session", len(users))
        yield _gauge("samba_share_count", "Shares that clients use", len(used))
        yield _gauge("samba_locked_file_count", "Files that are open", len(files))


def registry(
    server: Server, lag: LoopLag | None = None, audit: Audit | None = None, cluster: ClusterState | None = None
) -> CollectorRegistry:
    """Return a registry with the metrics of the server and of its process."""
    made = CollectorRegistry()
    made.register(ServerCollector(server, lag, audit, cluster))
    ProcessCollector(registry=made)
    GCCollector(registry=made)
    return made


def text(source: CollectorRegistry) -> bytes:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(source)


def _copy(total: Carried) -> Carried:
    return Carried(
        total.received,
        total.sent,
        total.rdma_received,
        total.rdma_sent,
        total.retransmissions,
        total.connections,
        Counter(total.operations),
    )


def _buckets(classes: Sequence[int]) -> list[tuple[str, float]]:
    """Return the cumulative buckets of a histogram."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip(_BOUNDS, classes, strict=True):
        total += count
        found.append((bound, total))
    return found


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value)


def _gauges(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, about: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family

"""What a node of a cluster says of itself: a part of the report, and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from smb3server.status.model import ClusterRecord


class ClusterState(Protocol):
    """A node of a cluster."""

    def report(self) -> ClusterRecord:
        """Return its state."""
        ...


def metrics(report: ClusterRecord) -> Iterator[Metric]:
    """Return the metrics of a node, from its report."""
    yield _gauge("cluster_member", "Whether the node is a member of the cluster", report.member)
    yield _gauge("cluster_lease_seconds", "Seconds until the node must stop serving services", report.lease_left)
    owned = GaugeMetricFamily(
        "smb3server_cluster_service_owned", "Whether the service is served here", labels=["service"]
    )
    served = GaugeMetricFamily(
        "smb3server_cluster_service_served", "Whether any node serves the service", labels=["service"]
    )
    restored = GaugeMetricFamily(
        "smb3server_cluster_service_restored_opens", "Opens that the last takeover restored", labels=["service"]
    )
    takeovers = CounterMetricFamily(
        "smb3server_cluster_takeovers", "How often the service was taken over here", labels=["service"]
    )
    losses = CounterMetricFamily(
        "smb3server_cluster_losses", "How often the service went away from here", labels=["service"]
    )
    for service in report.services:
        name = [service.name]
        owned.add_metric(name, service.owned)
        served.add_metric(name, service.node is not None)
        restored.add_metric(name, service.restored)
        takeovers.add_metric(name, service.takeovers)
        losses.add_metric(name, service.losses)
    yield from (owned, served, restored, takeovers, losses)
    etcd = report.etcd
    if etcd.latency is not None:
        yield _gauge("etcd_read_seconds", "Time of a read from etcd at the last look", etcd.latency)
    yield _gauge("etcd_up", "Whether etcd answered a read at the last look", etcd.latency is not None)
    up = GaugeMetricFamily("smb3server_etcd_member_up", "Whether the member answers", labels=["member"])
    size = GaugeMetricFamily("smb3server_etcd_size_bytes", "Size of the member's database", labels=["member"])
    quota = GaugeMetricFamily("smb3server_etcd_quota_bytes", "Size that the database may have", labels=["member"])
    alarms = GaugeMetricFamily("smb3server_etcd_alarms", "Alarms of the member", labels=["member"])
    for member in etcd.members:
        name = [member.endpoint]
        up.add_metric(name, not member.error)
        if not member.error:
            size.add_metric(name, member.size)
            quota.add_metric(name, member.limit)
            alarms.add_metric(name, len(member.alarms))
    yield from (up, size, quota, alarms)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"smb3server_{name}", about, value)

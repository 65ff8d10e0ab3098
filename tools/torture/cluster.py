"""Two nodes and an etcd in network namespaces; each node serves one of the shares under test at a virtual address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.cluster.etcd import EtcdError
from tools.cluster.lab import CLIENT, PORT, ClusterLab, LabError, service_section, why_not
from tools.cluster.network import NETWORK
from tools.cluster.node import NodeError
from tools.torture.server import SERVER_OPTIONS, ServerError, sections, settings

NODES = ("a", "b")
_FIRST = 100
"""Last number of the first virtual address."""


@contextlib.contextmanager
def running_cluster(
    folder: Path, shares: Sequence[str], paths: Mapping[str, Path], server: Mapping[str, object]
) -> Iterator[tuple[dict[str, tuple[str, int]], list[str]]]:
    """Run the cluster; yield the address of each share, and the first words of commands that can reach it.

    Raises ``ServerError``.
    """
    if reason := why_not():
        raise ServerError(f"no cluster: {reason}")
    place = folder / "cluster"
    place.mkdir()
    options = {name: {"service": name, "continuous_availability": True} for name in shares}
    text = sections({name: paths[name] for name in shares}, options)
    owners = {name: NODES[index % len(NODES)] for index, name in enumerate(shares)}
    for index, name in enumerate(shares):
        first = owners[name]
        text += service_section(name, _FIRST + index, [first, *(node for node in NODES if node != first)])
    try:
        with ClusterLab(place, NODES, text, options=settings({**SERVER_OPTIONS, **server})) as cluster:
            for name, node in owners.items():
                cluster.wait_for_service(name, node)
            found = {name: (f"{NETWORK}.{_FIRST + index}", PORT) for index, name in enumerate(shares)}
            yield found, cluster.network.prefix(CLIENT)
    except (EtcdError, LabError, NodeError) as error:
        raise ServerError(str(error)) from error

"""Carafe (examples/carafe): the results of networkx, and what is left of a run whose processes die."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import psutil
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import rstore  # noqa: E402
from carafe import BreadthFirst, CarafeError, Components, Graph, Outcome, PageRank, Program, kronecker, run  # noqa: E402
from carafe.engine import local_cluster  # noqa: E402
from carafe.graph import bounds, load  # noqa: E402
from carafe.programs import NotConverged  # noqa: E402
from carafe.reference import faults, ranks  # noqa: E402
from rstore.local import local_store  # noqa: E402

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
MIB = 1 << 20


class Cluster:
    """Workers, and a store."""

    def __init__(self, client: Any, store: tuple[str, int]) -> None:
        self.client, self.store = client, store

    def run(self, graph: Graph, program: Program, **options: Any) -> Outcome:
        return run(self.client, graph, program, self.store, **options)

    def regions(self) -> list[str]:
        with rstore.open_store(*self.store) as store:
            return list(store)

    def workers(self) -> list[int]:
        return list(self.client.run(os.getpid).values())

    def store_processes(self, kind: str) -> list[int]:
        children = psutil.Process().children()
        return [child.pid for child in children if str(ROOT / "examples" / "rstore") in child.cmdline()
                and f"{self.store[0]}:{self.store[1]}" in child.cmdline() and kind in child.cmdline()]  # fmt: skip


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers import carafe and the project."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "examples")]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "examples")]))
        with local_store(2, 32 * MIB) as store, local_cluster(3) as client:
            yield Cluster(client, store)


def random_graph(seed: int, directed: bool) -> Graph:
    """With vertices without edges, with edges that occur twice and with some that end where they begin."""
    random = np.random.default_rng(seed)
    vertices = int(random.integers(2, 300))
    used = random.permutation(vertices)[: max(1, vertices * 3 // 4)]
    sources, targets = random.choice(used, (2, int(random.integers(0, 4 * vertices))))
    twice = random.integers(0, 2, len(sources)).astype(bool)
    loops = used[:3]
    return Graph(
        vertices,
        np.concatenate([sources, sources[twice], loops]).astype(np.int64),
        np.concatenate([targets, targets[twice], loops]).astype(np.int64),
        directed,
    )


def as_networkx(graph: Graph) -> Any:
    made: Any = networkx.DiGraph() if graph.directed else networkx.Graph()
    made.add_nodes_from(range(graph.vertices))
    made.add_edges_from(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    return made


def check(cluster: Cluster, graph: Graph, **options: Any) -> None:
    """All three programs have the results of networkx."""
    right = as_networkx(graph)
    rank = cluster.run(graph, PageRank(tolerance=1e-12, most=500), **options).results["rank"]
    expected = networkx.pagerank(right, tol=1e-12, max_iter=500)
    assert np.allclose(rank, [expected[vertex] for vertex in range(graph.vertices)], rtol=1e-9)

    root = int(graph.sources[0]) if len(graph.sources) else 0
    found = cluster.run(graph, BreadthFirst(root), **options).results
    levels = networkx.single_source_shortest_path_length(right, root)
    assert found["level"].tolist() == [levels.get(vertex, -1) for vertex in range(graph.vertices)]
    for vertex, parent in enumerate(found["parent"].tolist()):
        if vertex == root or vertex not in levels:
            assert parent == (root if vertex == root else -1)
        else:
            assert right.has_edge(parent, vertex) and levels[parent] == levels[vertex] - 1

    component = cluster.run(graph, Components(), **options).results["component"].tolist()
    together = networkx.weakly_connected_components(right) if graph.directed else networkx.connected_components(right)
    for vertices in together:
        assert {component[vertex] for vertex in vertices} == {min(vertices)}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("directed", [False, True])
def test_results_are_those_of_networkx(cluster: Cluster, seed: int, directed: bool) -> None:
    check(cluster, random_graph(seed, directed))


@pytest.mark.parametrize("directed", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_kronecker_graph(cluster: Cluster, directed: bool) -> None:
    graph = kronecker(8, 8, seed=5, directed=directed)
    check(cluster, graph)
    for program in (PageRank(), PageRank(tolerance=0, most=3), BreadthFirst(int(graph.sources[0])), Components()):
        outcome = cluster.run(graph, program, workers=2)
        assert faults(graph, program, outcome) == []
        for values in outcome.results.values():
            values[graph.sources[0]] = values[graph.sources[0]] + 1
        assert len(faults(graph, program, outcome)) > 0, "the comparison finds a wrong value"


@pytest.mark.parametrize("edges", [[], [(0, 0)]])
@pytest.mark.parametrize("directed", [False, True])
def test_one_vertex(cluster: Cluster, edges: list[tuple[int, int]], directed: bool) -> None:
    """There are more workers than vertices, too."""
    ends = np.array(edges, np.int64).reshape(-1, 2)
    check(cluster, Graph(1, ends[:, 0], ends[:, 1], directed))


def test_a_long_path(cluster: Cluster) -> None:
    """More supersteps than a byte can count."""
    path = np.arange(700)
    graph = Graph(701, path, path + 1, True)
    outcome = cluster.run(graph, BreadthFirst(0))
    assert outcome.results["level"].tolist() == list(range(701))
    assert len(outcome.supersteps) > 700


def test_a_user_program(cluster: Cluster) -> None:
    class Heaviest(Program):
        """The largest number among a vertex and its in-neighbours."""

        kind, combine, nothing, results = np.int64, np.maximum, -1, ("largest",)

        def begin(self, part: Any) -> None:
            self.largest = part.names()

        def send(self, part: Any) -> Any:
            return self.largest, ()

        def apply(self, part: Any, received: Any, votes: Any) -> bool:
            self.largest = np.maximum(self.largest, received)
            return True

    graph = random_graph(11, True)
    right = np.arange(graph.vertices)
    np.maximum.at(right, graph.targets, graph.sources)
    outcome = cluster.run(graph, Heaviest())
    assert outcome.results["largest"].tolist() == right.tolist() and len(outcome.supersteps) == 1


def test_the_programs_of_the_page(cluster: Cluster, tmp_path: Path) -> None:
    first, second = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "carafe.md").read_text(), re.M | re.S)
    named: dict[str, Any] = {"__name__": "__main__"}
    exec(first, named)
    graph = kronecker(8, directed=True)
    found = cluster.run(graph, named["Rank"]()).results["rank"]
    assert np.allclose(found, next(itertools.islice(ranks(graph), 29, None)), rtol=1e-9)

    (tmp_path / "program.py").write_text(second.replace("kronecker(16)", "kronecker(8)"))
    environment = ENVIRONMENT | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    graph = kronecker(8)
    outcome = cluster.run(graph, PageRank())
    assert float(done.stdout) == pytest.approx(outcome.results["rank"].max())


def test_errors_of_programs_are_told(cluster: Cluster) -> None:
    graph = kronecker(6, 4)
    with pytest.raises(NotConverged, match="after 2 iterations"):
        cluster.run(graph, PageRank(tolerance=1e-12, most=2))
    with pytest.raises(ValueError, match="vertex 64 is not one of"):
        cluster.run(graph, BreadthFirst(64))

    class Broken(PageRank):
        """One worker of three fails, in the fourth superstep."""

        def apply(self, part: Any, received: Any, votes: Any) -> bool:
            if self.iterations == 3 and part.first == 0:
                raise ZeroDivisionError("of the user")
            return super().apply(part, received, votes)

    with pytest.raises(ZeroDivisionError, match="of the user"):
        cluster.run(graph, Broken(tolerance=0, most=100))
    until(lambda: cluster.regions() == [])
    assert faults(graph, Components(), cluster.run(graph, Components())) == [], "the cluster is good for the next run"


def start(cluster: Cluster, graph: Graph, most: int = 5000, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """Start a run that does not end by itself soon, and wait until it is in its supersteps."""
    ended: list[Any] = []

    def forever() -> None:
        try:
            ended.append(cluster.run(graph, PageRank(tolerance=0, most=most), **options))
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=forever)
    thread.start()
    until(lambda: sum("mailbox" in name for name in cluster.regions()) == 3)
    time.sleep(0.3)
    return thread, ended


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_a_worker_dies_or_hangs(importable: None, how: signal.Signals) -> None:
    with local_store(1, 32 * MIB) as store, local_cluster(3) as client:
        cluster = Cluster(client, store)
        thread, ended = start(cluster, kronecker(12))
        workers = cluster.workers()
        victim = workers[1]
        os.kill(victim, how)
        try:
            thread.join(60)
            assert not thread.is_alive()
            assert isinstance(ended[0], CarafeError), ended
            assert "worker" in str(ended[0]) and "start it again" in str(ended[0])
            until(lambda: cluster.regions() == [])
        finally:
            if how == signal.SIGSTOP:
                os.kill(victim, signal.SIGKILL)
    assert cluster.store_processes("serve") == [] and not any(map(psutil.pid_exists, workers))


@pytest.mark.long
@pytest.mark.parametrize("copies", [1, 2])
def test_a_memory_server_dies(importable: None, copies: int) -> None:
    with local_store(2, 32 * MIB) as store, local_cluster(3) as client:
        cluster = Cluster(client, store)
        graph = kronecker(10)
        thread, ended = start(cluster, graph, most=5000 if copies == 1 else 300, copies=copies)
        os.kill(cluster.store_processes("serve")[0], signal.SIGKILL)
        thread.join(60)
        assert not thread.is_alive()
        if copies == 1:
            assert isinstance(ended[0], CarafeError), ended
            assert "a memory server died: region" in str(ended[0]) and "with two copies" in str(ended[0])
        else:
            assert isinstance(ended[0], Outcome), ended
            assert faults(graph, PageRank(tolerance=0), ended[0]) == []
        until(lambda: cluster.regions() == [])


@pytest.mark.long
def test_the_program_that_started_the_run_dies(tmp_path: Path) -> None:
    """Its workers, and the store that it started, end as well."""
    kronecker(10).save(tmp_path / "g")
    words = ["pagerank", str(tmp_path / "g"), "--tolerance", "0", "--iterations", "1000000", "--workers", "2"]
    command = [sys.executable, str(ROOT / "examples" / "carafe"), *words]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def busy() -> list[psutil.Process]:
            found = psutil.Process(process.pid).children(recursive=True)
            return found if len(found) >= 5 and sum(child.cpu_times().user > 1.0 for child in found) >= 2 else []

        children = until(busy, 60)
        process.kill()
    until(lambda: not any(child.is_running() for child in children))


@pytest.mark.long
def test_the_master_of_the_store_dies(importable: None) -> None:
    with local_store(1, 32 * MIB) as store, local_cluster(3) as client:
        cluster = Cluster(client, store)
        thread, ended = start(cluster, kronecker(10), most=100_000)
        os.kill(cluster.store_processes("master")[0], signal.SIGKILL)
        thread.join(80)
        assert not thread.is_alive()
        assert isinstance(ended[0], CarafeError) and "the store does not answer" in str(ended[0]), ended


def test_vertices_are_divided_by_weight() -> None:
    graph = kronecker(10)
    edges = graph.simple(False)
    for workers in (1, 2, 3, 7):
        cuts = bounds(graph.vertices, edges, workers)
        assert cuts[0] == 0 and cuts[-1] == graph.vertices and (np.diff(cuts) > 0).all()
        weights = np.diff(np.searchsorted(edges, cuts * graph.vertices)) + np.diff(cuts)
        assert weights.max() < 1.3 * weights.mean()
    assert bounds(2, np.empty(0, np.int64), 5).tolist()[0::5] == [0, 2], "some workers have nothing"


def test_the_generator_draws_as_graph500_says() -> None:
    """With one bit, an edge is one of four: 57, 19, 19 and 5 in a hundred; the permutation may swap the vertices."""
    graph = kronecker(1, 100_000, seed=3)
    counts = np.bincount(2 * graph.sources + graph.targets, minlength=4) / len(graph.sources)
    if counts[3] > counts[0]:
        counts = counts[::-1]
    assert np.allclose(counts, [0.57, 0.19, 0.19, 0.05], atol=0.005)
    one, same, other = kronecker(9, 4, 1), kronecker(9, 4, 1), kronecker(9, 4, 2)
    assert np.array_equal(one.sources, same.sources) and not np.array_equal(one.sources, other.sources)
    assert (one.vertices, len(one.sources)) == (512, 2048)
    # A few vertices have most edges, and some have none.
    degree = np.sort(np.bincount(np.concatenate([one.sources, one.targets]), minlength=512))
    assert degree[0] == 0 and degree[-51:].sum() > 0.35 * degree.sum()


def test_files(tmp_path: Path) -> None:
    graph = random_graph(1, True)
    graph.save(tmp_path / "g")
    again = load(tmp_path / "g")
    assert again.vertices == graph.vertices and again.directed
    assert np.array_equal(again.sources, graph.sources) and np.array_equal(again.targets, graph.targets)
    (tmp_path / "text").write_text("# from to\n0\t3\n3\t1\n")
    text = load(tmp_path / "text", directed=True)
    assert (text.vertices, text.sources.tolist(), text.targets.tolist(), text.directed) == (4, [0, 3], [3, 1], True)
    (tmp_path / "text").write_text("0 -1\n")
    with pytest.raises(ValueError, match="leaves the vertices"):
        load(tmp_path / "text")
    (tmp_path / "text").write_text("zero one\n")
    with pytest.raises(ValueError, match="zero"):
        load(tmp_path / "text")
    np.savez(tmp_path / "other.npz", vertices=1)
    with pytest.raises(ValueError, match="not a graph"):
        load(tmp_path / "other.npz")


def carafe(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "carafe"), *map(str, words)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=100, check=False)


def test_the_commands(tmp_path: Path) -> None:
    graph, output = tmp_path / "g", tmp_path / "out"
    assert carafe("gen", graph, 8).returncode == 0
    found = carafe("bfs", graph, "--workers", 2, "--check", "--output", output)
    assert found.returncode == 0 and "scipy has the same" in found.stdout, found.stdout + found.stderr
    with np.load(output) as saved:
        assert sorted(saved) == ["level", "parent"] and len(saved["level"]) == 256
    for words, said in (
        (("bfs", graph, "--root", 256), "vertex 256 is not one of 0 to 255"),
        (("pagerank", tmp_path / "none"), "No such file"),
    ):
        found = carafe(*words)
        assert found.returncode == 1 and found.stderr.startswith("carafe: ") and said in found.stderr

"""The same random operations on the local and the memory backend have the same outcome."""

from __future__ import annotations

import tempfile
from contextlib import closing

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smb3server.backends.base import Backend, Disposition, OpenRequest, Path
from smb3server.backends.local.backend import LocalBackend, LocalOptions
from smb3server.backends.memory.backend import MemoryBackend
from tests.lab.examples import examples

components = st.sampled_from(["a", "A", "b", "B", "é", "É"])
paths = st.lists(components, min_size=1, max_size=3).map(tuple)
streams = st.sampled_from(["", "", "s", "S"])
operations = st.one_of(
    st.tuples(
        st.just("open"), paths, streams, st.sampled_from(Disposition), st.sampled_from([None, True, False]), st.binary()
    ),
    st.tuples(st.just("rename"), paths, paths, st.booleans()),
    st.tuples(st.just("link"), paths, paths, st.booleans()),
    st.tuples(st.just("unlink"), paths, streams),
    st.tuples(st.just("truncate"), paths, streams, st.integers(0, 10000)),
    st.tuples(st.just("attributes"), paths, st.integers(0, 0xFFFF)),
)


def perform(backend: Backend, operation: tuple[object, ...]) -> object:
    """What came of it, errors included."""
    try:
        match operation:
            case ("open", path, stream, disposition, directory, data):
                request = OpenRequest(path, stream, disposition, True, True, directory)
                with closing(backend.open(request)) as handle:
                    if handle.kind == 0 or stream:
                        handle.write_from([data], 0)
                    return handle.created, handle.path, handle.stream, handle.kind
            case ("rename", path, target, replace):
                with closing(backend.open(OpenRequest(path))) as handle:
                    handle.rename(target, replace)
                    return handle.path
            case ("link", path, target, replace):
                with closing(backend.open(OpenRequest(path))) as handle:
                    handle.link(target, replace)
                    return handle.info().link_count
            case ("unlink", path, stream):
                with closing(backend.open(OpenRequest(path, stream))) as handle:
                    handle.unlink()
                    return [found.name for found in handle.streams()]
            case ("truncate", path, stream, size):
                with closing(backend.open(OpenRequest(path, stream))) as handle:
                    handle.truncate(size)
                    return handle.info().end_of_file
            case ("attributes", path, attributes):
                with closing(backend.open(OpenRequest(path))) as handle:
                    handle.set_attributes(attributes)
                    return handle.info().attributes
    except OSError as error:
        return type(error).__name__
    raise AssertionError(operation)


def tree(backend: Backend, path: Path = ()) -> dict[Path, object]:
    found: dict[Path, object] = {}
    with closing(backend.open(OpenRequest(path, directory=True, read=True))) as directory:
        for name, info in list(directory.scan())[2:]:
            below = (*path, name)
            with closing(backend.open(OpenRequest(below, read=True))) as handle:
                content = bytearray(20000)
                count = handle.read_into([memoryview(content)], 0) if handle.kind == 0 else 0
                shown = [(stream.name, stream.size) for stream in handle.streams()]
                links = info.link_count if handle.kind == 0 else 0
                found[below] = (info.kind, info.attributes, info.end_of_file, links, bytes(content[:count]), shown)
            if info.kind == 1:
                found |= tree(backend, below)
    return found


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(operations, max_size=25), st.sampled_from(["auto", "none"]), st.sampled_from([None, False]))
def test_both_agree(steps: list[tuple[object, ...]], xattrs: str, openat2: bool | None) -> None:
    with tempfile.TemporaryDirectory() as root:
        memory = MemoryBackend()
        with closing(LocalBackend(root, LocalOptions(xattrs=xattrs, openat2=openat2))) as local:
            for step in steps:
                assert perform(local, step) == perform(memory, step), step
            assert tree(local) == tree(memory)

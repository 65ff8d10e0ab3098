"""Two clients, one over TCP and one over SMB Direct, do whatever they like; a model says what must come of it.

After each step the share on the disk is compared with the model: names, sizes, contents. So are the statuses, what is
read and listed, and the lease breaks that arrive. MODEL_EXAMPLES=2000 gives the long test other steps in each run, and
as many examples.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path as HostPath
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from smb3server.client.protocol import RemoteFile, ServerError, Tree
from smb3server.settings.server import Settings
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.create_contexts import LEASE_V2_CODEC, REQUEST_LEASE, LeaseV2, RawContext
from smb3server.wire.file_info import FileInfoClass
from smb3server.wire.lock import LockElement
from smb3server.wire.oplock_break import ACK_REQUIRED, LeaseBreakNotification, OplockBreak
from smb3server.wire.status import NtStatus
from tests.lab.harness import lab
from tests.lab.model_files import DELETE, OVERWRITES, READ, WRITE, H, Key, Model, Opened, Path, R, W

T = TypeVar("T")
PATHS = [("a",), ("b",), ("d",), ("d", "a"), ("d", "b"), ("d", "e"), ("e",), ("e", "a")]
"""Few, so that the clients meet. ``d`` and ``e`` are mostly directories."""
UNLOCK, SHARED, EXCLUSIVE, AT_ONCE = 4, 1, 2, 16
LEASE_OPLOCK = 0xFF
paths = st.sampled_from(PATHS[:4] * 3 + PATHS[4:])
dispositions = st.sampled_from([CreateDisposition.OPEN_IF] * 4 + list(CreateDisposition))
accesses = st.sampled_from([READ, WRITE, READ | WRITE, READ | WRITE | DELETE, READ | WRITE | DELETE, DELETE])
shares = st.sampled_from([7, 7, 7, 7, 3, 1, 0])
leases = st.sampled_from([None, None, R, R | H, R | W, R | W | H])
clients = st.integers(0, 1)
numbers = st.sampled_from(range(100))
offsets = st.sampled_from([0, 5, 10, 20, 40])


class TwoClients(RuleBasedStateMachine):
    """The machine. ``_opens`` has the model's opens and the real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.folder = tempfile.TemporaryDirectory(prefix="model-")
        self.stack = AsyncExitStack()
        self.trees: list[Tree] = []
        self.opens: list[tuple[Opened, RemoteFile]] = []
        self.breaks: list[tuple[Key, int]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.run(self._start())

    def run(self, work: Awaitable[T]) -> T:
        """Run to the end, and at most for some seconds."""
        return self.loop.run_until_complete(asyncio.wait_for(work, 20))

    async def _start(self) -> None:
        server = await self.stack.enter_async_context(lab(HostPath(self.folder.name), Settings()))
        for number in range(2):
            tree = await self.stack.enter_async_context(server.tree(rdma=bool(number)))
            tree.client.on_break = lambda found, number=number: self._broken(number, found)
            self.trees.append(tree)

    def _broken(self, client: int, found: OplockBreak | LeaseBreakNotification) -> None:
        assert isinstance(found, LeaseBreakNotification)
        key = client, int.from_bytes(found.lease_key[8:], "little")
        self.breaks.append((key, found.new_lease_state))
        if found.flags & ACK_REQUIRED:
            work = self.trees[client].acknowledge_lease_break(found.lease_key, found.new_lease_state)
            task = self.loop.create_task(work)
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def attempt(self, work: Awaitable[T], outcome: set[NtStatus]) -> T | None:
        """Do one operation, and compare its status and its breaks with the model's."""

        async def done() -> T | None:
            try:
                result = await work
            except ServerError as error:
                assert error.status in outcome, f"{NtStatus(error.status).name}, right: {outcome or 'success'}"
                return None
            assert not outcome, f"success, right: {outcome}"
            return result

        async def settled() -> T | None:
            result = await done()
            # Breaks that were sent are in front of the answer to a later request.
            for tree in self.trees:
                await tree.client.echo()
            if self.tasks:
                await asyncio.wait(self.tasks)
            return result

        result = self.run(settled())
        breaks, self.breaks = self.breaks, []
        self.model.settle(breaks, not outcome)
        return result

    def pick(self, number: int) -> tuple[Opened, RemoteFile, Tree]:
        """Return an open."""
        opened, file = self.opens[number % len(self.opens)]
        return opened, file, self.trees[opened.client]

    def files(self) -> list[tuple[Opened, RemoteFile]]:
        """Return the opens of files."""
        return [entry for entry in self.opens if not entry[0].node.directory]

    def pick_file(self, number: int) -> tuple[Opened, RemoteFile, Tree]:
        """Return an open of a file."""
        files = self.files()
        opened, file = files[number % len(files)]
        return opened, file, self.trees[opened.client]

    # -- rules

    @initialize()
    def begin(self) -> None:
        """Make a directory."""
        self.open(0, ("d",), READ, 7, 50, 50, CreateDisposition.CREATE, None)
        self.close_one(0)

    @rule(
        client=clients, path=paths, access=accesses, share=shares, odd=numbers, delete=numbers,
        disposition=dispositions, lease=leases,
    )  # fmt: skip
    def create(
        self, client: int, path: Path, access: int, share: int, odd: int, delete: int, disposition: int,
        lease: int | None,
    ) -> None:  # fmt: skip
        self.open(client, path, access, share, odd, delete, disposition, lease)

    @precondition(lambda self: self.opens)
    @rule(number=numbers, access=accesses, share=shares, delete=numbers, disposition=dispositions, lease=leases)
    def create_beside(
        self, number: int, access: int, share: int, delete: int, disposition: int, lease: int | None
    ) -> None:
        """Open a file that is open, by the other client."""
        opened, _, _ = self.pick(number)
        path = self.model.path_of(opened.node)
        odd = 50 if (path[-1] in "de") is opened.node.directory else 0
        self.open(1 - opened.client, path, access, share, odd, delete, disposition, lease)

    def open(
        self, client: int, path: Path, access: int, share: int, odd: int, delete: int, disposition: int,
        lease: int | None,
    ) -> None:  # fmt: skip
        """Send a CREATE. ``odd`` and ``delete`` are chances in percent."""
        directory = (path[-1] in "de") is (odd > 5)
        if directory and disposition in OVERWRITES:
            disposition = CreateDisposition.OPEN_IF
        if disposition in OVERWRITES:
            access |= READ | WRITE | DELETE
        gone = delete < 10 and bool(access & DELETE)
        options = CreateOptions.DIRECTORY_FILE if directory else CreateOptions.NON_DIRECTORY_FILE
        if gone:
            options |= CreateOptions.DELETE_ON_CLOSE
        leased = lease is not None and not directory
        right = self.model.create(path, access, share, disposition, directory, gone, client if leased else None)
        node = self.model.nodes.get(path)
        number = node.number if node is not None else self.model.next_number
        contexts = []
        if leased and lease is not None:
            key = client.to_bytes(8, "little") + number.to_bytes(8, "little")
            contexts = [RawContext(REQUEST_LEASE, LEASE_V2_CODEC.pack(LeaseV2(key, lease)))]
        work = self.trees[client].create(
            "\\".join(path), access, disposition, int(options), share, contexts=contexts,
            oplock=LEASE_OPLOCK if leased else 0,
        )  # fmt: skip
        file = self.attempt(work, right)
        if file is None:
            return
        opened = self.model.created(client, path, access, share, disposition, directory, gone)
        if leased:
            granted = LEASE_V2_CODEC.unpack(dict(file.contexts)[REQUEST_LEASE])
            self.model.leased(opened, granted.lease_state)
        assert file.size == len(opened.node.content)
        self.opens.append((opened, file))

    @precondition(lambda self: len(self.opens) > 3)
    @rule(number=numbers)
    def close(self, number: int) -> None:
        self.close_one(number)

    def close_one(self, number: int) -> None:
        """Close an open."""
        opened, file, tree = self.pick(number)
        self.attempt(tree.close(file), self.model.close(opened))
        self.model.closed(opened)
        self.opens.remove((opened, file))

    @precondition(lambda self: self.files())
    @rule(number=numbers, offset=offsets, data=st.binary(min_size=1, max_size=30), large=st.booleans())
    def write(self, number: int, offset: int, data: bytes, large: bool) -> None:
        opened, file, tree = self.pick_file(number)
        # Enough for RDMA.
        data = data * 400 if large else data
        right = self.model.write(opened, offset, len(data))
        if self.attempt(tree.write(file, offset, data), right) is not None:
            content = opened.node.content
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data

    @precondition(lambda self: self.files())
    @rule(number=numbers, offset=offsets, length=st.sampled_from([1, 50, 20_000]))
    def read(self, number: int, offset: int, length: int) -> None:
        opened, file, tree = self.pick_file(number)
        right, data = self.model.read(opened, offset, length)
        found = self.attempt(tree.read(file, offset, length), right)
        assert right or found == data

    @precondition(lambda self: self.files())
    @rule(number=numbers, size=st.sampled_from([0, 3, 50, 5000]))
    def resize(self, number: int, size: int) -> None:
        opened, file, tree = self.pick_file(number)
        if any(other.locks for other in self.model.opens_of(opened.node)):
            return
        right = self.model.resize(opened)
        self.attempt(tree.set_info(file, FileInfoClass.END_OF_FILE, size.to_bytes(8, "little")), right)
        if not right:
            content = opened.node.content
            content.extend(bytes(max(0, size - len(content))))
            del content[size:]

    @precondition(lambda self: self.files())
    @rule(number=numbers, offset=offsets, length=st.integers(1, 20), exclusive=st.booleans())
    def lock(self, number: int, offset: int, length: int, exclusive: bool) -> None:
        opened, file, tree = self.pick_file(number)
        if any(key[1] == opened.node.number for key in self.model.leases):
            return
        right = self.model.lock(opened, offset, length, exclusive)
        element = LockElement(offset, length, (EXCLUSIVE if exclusive else SHARED) | AT_ONCE)
        self.attempt(tree.lock(file, [element]), right)
        if not right:
            opened.locks.append((offset, length, exclusive))

    @precondition(lambda self: self.opens)
    @rule(number=numbers, which=numbers)
    def unlock(self, number: int, which: int) -> None:
        opened, file, tree = self.pick(number)
        if not opened.locks:
            return
        found = opened.locks[which % len(opened.locks)]
        self.attempt(tree.lock(file, [LockElement(found[0], found[1], UNLOCK)]), set())
        opened.locks.remove(found)

    @precondition(lambda self: self.opens)
    @rule(number=numbers, to=paths, replace=st.booleans())
    def rename(self, number: int, to: Path, replace: bool) -> None:
        opened, file, tree = self.pick(number)
        source = self.model.path_of(opened.node)
        if opened.node.pending or to[: len(source)] == source:
            return
        right = self.model.rename(opened, to, replace)
        self.attempt(tree.rename(file, "\\".join(to), replace), right)
        if not right:
            if to in self.model.nodes:
                del self.model.nodes[to]
            self.model.renamed(opened, to)

    @precondition(lambda self: self.opens)
    @rule(number=numbers, chance=numbers)
    def dispose(self, number: int, chance: int) -> None:
        delete = chance < 20
        opened, file, tree = self.pick(number)
        right = self.model.dispose(opened, delete)
        self.attempt(tree.set_info(file, FileInfoClass.DISPOSITION, bytes([delete])), right)
        if not right:
            opened.node.pending = delete

    @precondition(lambda self: len(self.opens) > 3)
    @rule(client=clients)
    def listing(self, client: int) -> None:
        tree = self.trees[client]

        async def listed() -> set[tuple[str, int]]:
            root = await tree.create("", READ, CreateDisposition.OPEN, int(CreateOptions.DIRECTORY_FILE))
            found = {(entry.name, entry.end_of_file) async for entry in tree.entries(root) if entry.name[0] != "."}
            await tree.close(root)
            return found

        found = self.attempt(listed(), set())
        top = {(path[0], len(node.content)) for path, node in self.model.nodes.items() if len(path) == 1}
        assert {name for name, _ in found or ()} == {name for name, _ in top}

    # -- after each step

    @invariant()
    def the_disk_is_as_the_model(self) -> None:
        root = HostPath(self.folder.name) / "share"
        found = {
            path.relative_to(root).parts: None if path.is_dir() else path.read_bytes()
            for path in root.rglob("*")
            if not path.relative_to(root).parts[0].startswith(".")
        }
        there = {
            path: None if node.directory else bytes(node.content) for path, node in self.model.nodes.items() if path
        }
        assert found == there

    def teardown(self) -> None:
        self.run(self.stack.aclose())
        self.loop.close()
        self.folder.cleanup()


def _run(examples: int, derandomize: bool) -> None:
    """Run the machine. A failure is shown as it was found: to shrink it takes minutes."""
    chosen = settings(
        max_examples=examples, stateful_step_count=40, deadline=None, database=None, derandomize=derandomize,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(TwoClients, settings=chosen)


def test_two_clients_against_the_model() -> None:
    """The same steps in each run."""
    _run(30, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_clients_against_the_model_for_long() -> None:
    """The same steps in each run, unless MODEL_EXAMPLES is given."""
    _run(int(os.environ.get("MODEL_EXAMPLES", "400")), derandomize="MODEL_EXAMPLES" not in os.environ)

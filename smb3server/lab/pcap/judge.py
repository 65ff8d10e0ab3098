"""A whole capture, frame by frame: every connection in it with its commands and verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.lab.pcap.capture import Frame, Frames, TimeOrder, opened
from smb3server.lab.pcap.connection import Connection, Settings, TcpConnection
from smb3server.lab.pcap.given_secrets import Secrets
from smb3server.lab.pcap.infiniband import InfinibandReader
from smb3server.lab.pcap.packets import Address, PacketError, TcpSegment, read_packet
from smb3server.lab.pcap.rdma import RdmaMessage, Wire
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.sessions import SessionTable
from smb3server.lab.pcap.tcp import Conversation, Reassembler
from smb3server.lab.pcap.verdicts import Breach, Gap, Verdicts

_GAPS_KEPT = 1000
_BREACHES_KEPT = 10000
"""Breaches and gaps that are kept for the end. All are counted, and reported when they are found."""


@dataclass
class Watcher:
    """Functions that are called with findings as soon as they are found."""

    command: Callable[[CommandRecord], None] = lambda record: None
    breach: Callable[[Breach], None] = lambda breach: None
    gap: Callable[[Gap], None] = lambda gap: None
    rdma: Callable[[int, RdmaMessage], None] | None = None


@dataclass
class Judge:
    """Judges the frames of one capture: ``add`` each, then ``finish``."""

    secrets: Secrets = field(default_factory=Secrets)
    watcher: Watcher = field(default_factory=Watcher)
    record: bool = False
    """Whether to keep all messages, for those who look at them afterwards."""
    frames: int = 0
    connections: list[Connection] = field(default_factory=list)
    breaches: list[Breach] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    ignored: Counter[int] = field(default_factory=Counter)
    """Frames that have neither TCP nor InfiniBand in them, by link type."""

    def __post_init__(self) -> None:
        self._general = Verdicts(0, self._found)
        self._order = TimeOrder()
        self._settings = Settings(SessionTable(), self.secrets, self.watcher.command, self.record, self.watcher.rdma)
        self._tcp = Reassembler(self._tcp_begun)
        self.infiniband = InfinibandReader(self._wire_begun, self._wire_ended, self._general)
        self._by_wire: dict[int, Connection] = {}

    def add(self, frame: Frame) -> None:
        """Take the next frame of the file."""
        self.frames += 1
        for ready in self._order.add(frame):
            self._judge(ready)

    def _judge(self, frame: Frame) -> None:
        try:
            packet = read_packet(frame)
        except PacketError as error:
            self._general.unjudged(frame.number, str(error))
            return
        if isinstance(packet, TcpSegment):
            self._tcp.add(packet)
        elif packet is not None:
            self.infiniband.add(packet)
        else:
            self.ignored[frame.link_type] += 1

    def finish(self, ended_early: str = "") -> None:
        """End all connections. ``ended_early`` says why the file ends before its end."""
        for frame in self._order.rest():
            self._judge(frame)
        self._tcp.finish()
        self.infiniband.finish()
        for connection in self.connections:
            connection.finish()
        if ended_early:
            self._general.unjudged(self.frames, ended_early)
        if self.ignored and self.ignored.total() == self.frames:
            links = ", ".join(str(link) for link in sorted(self.ignored))
            self._general.unjudged(1, f"no frame has TCP or InfiniBand in it (link types {links})")

    @property
    def clean(self) -> bool:
        """Whether no rule was found broken."""
        return not self.broken

    @property
    def checked(self) -> Counter[str]:
        """How often each rule was looked at, by id."""
        return self._sum([verdicts.checked for verdicts in self._all_verdicts()])

    @property
    def broken(self) -> Counter[str]:
        """How often each rule was broken, by id."""
        return self._sum([verdicts.broken for verdicts in self._all_verdicts()])

    def _all_verdicts(self) -> list[Verdicts]:
        return [self._general, *(connection.verdicts for connection in self.connections)]

    @staticmethod
    def _sum(counters: list[Counter[str]]) -> Counter[str]:
        total: Counter[str] = Counter()
        for counter in counters:
            total.update(counter)
        return total

    def _found(self, finding: Breach | Gap) -> None:
        if isinstance(finding, Breach):
            if len(self.breaches) < _BREACHES_KEPT:
                self.breaches.append(finding)
            self.watcher.breach(finding)
            return
        if len(self.gaps) < _GAPS_KEPT:
            self.gaps.append(finding)
        self.watcher.gap(finding)

    # -- Connections ----------------------------------------------------------------------------------------------

    def _begin(self, fabric: str, client: Address, server: Address, number: int, saw_start: bool) -> Connection:
        verdicts = Verdicts(len(self.connections) + 1, self._found)
        connection = Connection(fabric, client, server, verdicts, self._settings, number, saw_start)
        self.connections.append(connection)
        return connection

    def _tcp_begun(self, conversation: Conversation) -> None:
        TcpConnection(
            conversation,
            lambda fabric, c: self._begin(fabric, c.client, c.server, c.last[0], c.saw_start),
            lambda number: self._general.unjudged(number, "the beginning of a connection is not captured"),
        )

    def _wire_begun(self, network: str, client: Address, server: Address, number: int, saw_start: bool) -> Wire:
        connection = self._begin(network, client, server, number, saw_start)
        wire = connection.wire
        assert wire is not None
        self._by_wire[id(wire)] = connection
        return wire

    def _wire_ended(self, wire: Wire, number: int) -> None:
        self._by_wire.pop(id(wire)).finish()


def judge_capture(
    name: str, secrets: Secrets | None = None, watcher: Watcher | None = None, record: bool = False
) -> Judge:
    """Judge a file; ``-`` is standard input. Raises ``CaptureError`` for other files, and ``OSError``."""
    judge = Judge(secrets or Secrets(), watcher or Watcher(), record)
    with opened(name) as stream:
        frames = Frames(stream)
        for frame in frames:
            judge.add(frame)
        judge.finish(frames.ended_early)
    return judge

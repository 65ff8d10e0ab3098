"""A judged capture in words: a line per command as it ends, breaches where they happen, and sums at the end."""

from __future__ import annotations

import datetime

from smb3server.lab.pcap.connection import Connection
from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.rdma import Kind, RdmaMessage
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.summary import Summary
from smb3server.lab.pcap.verdicts import Breach, Gap

_HEADING = (
    f"{'frame':>7} {'reply':>7} {'time':<15} {'ms':>9}  # {'command':<15} {'status':<32} {'credits':>9} "
    f"{'':<2} {'bytes':<12} file"
)
_LATENCY_HEADING = (
    f"{'command':<15} {'count':>8} {'errors':>7} {'bytes':>13} {'p50 ms':>9} {'p90 ms':>9} {'p99 ms':>9} {'max ms':>9}"
)


def clock(time: float) -> str:
    """Return the time of day in UTC."""
    return datetime.datetime.fromtimestamp(time, datetime.UTC).strftime("%H:%M:%S.%f")


def command_line(record: CommandRecord) -> str:
    """Return the line of one command."""
    latency = "-" if record.latency is None else f"{record.latency * 1000:.3f}"
    moved = f"{record.bytes} {record.way}" if record.way else ""
    if record.operation_count:
        moved += f" ({record.operation_count}: {', '.join(map(str, record.operations[:3]))}"
        moved += ", ...)" if record.operation_count > 3 else ")"
    marks = ("a" if record.asynchronous else "") + ("e" if record.encrypted else "s" if record.signed else "")
    name = record.file or record.share
    credit = f"{record.charge}/{record.requested}/{record.granted}"
    return (
        f"{record.number or '-':>7} {record.reply or '-':>7} {clock(record.time)} {latency:>9} {record.connection:>2} "
        f"{record.name:<15} {record.status_name.removeprefix('STATUS_'):<32} {credit:>9} {marks:<2} {moved:<12} {name}"
    ).rstrip()


class TextReport:
    """Prints a capture. ``show_commands`` and ``show_messages`` choose what is printed beside verdicts."""

    def __init__(self, summary: Summary, show_commands: bool, show_messages: bool) -> None:
        self._summary = summary
        self._filter = summary.filter
        self._commands, self._messages = show_commands, show_messages
        self._headed = False

    def command(self, record: CommandRecord) -> None:
        """Print the line of a command."""
        if not self._filter.shows(record):
            return
        self._summary.command(record)
        if not self._commands:
            return
        if not self._headed:
            self._headed = True
            print(_HEADING)
        print(command_line(record))

    def rdma(self, connection: int, message: RdmaMessage) -> None:
        """Print a message of the fabric."""
        if not self._messages:
            return
        if message.kind is Kind.SEND:
            text = f"Send of {message.length} bytes"
            if message.invalidated is not None:
                text += f", invalidating {message.invalidated:#x}"
        else:
            text = f"{message.kind.value} of {message.length} bytes"
            if message.kind is not Kind.READ_RESPONSE:
                text += f" at {message.address:#x}, token {message.token:#x}"
        place = f"{message.number:>7} {'':>7} {clock(message.time)} {'':>9} {connection:>2}"
        print(f"{place} {message.direction.arrow} {text}")

    def breach(self, breach: Breach) -> None:
        """Print a broken rule."""
        if self._filter.chooses(breach):
            self._summary.breach(breach)
            rule = breach.rule
            print(f"{breach.number:>7} BROKEN {rule.id} by the {breach.by}: {breach.text} [{rule.section}]")

    def gap(self, gap: Gap) -> None:
        """Print what cannot be judged."""
        print(f"{gap.number:>7} not judged: {gap.reason}")

    def finish(self, name: str, judge: Judge) -> None:
        """Print the sums."""
        for connection in judge.connections:
            print(_connection(connection))
        self._latencies()
        verdicts = list(self._summary.verdicts(judge))
        kept = sum(verdict.verdict == "kept" for verdict in verdicts)
        unseen = sum(verdict.verdict == "not seen" for verdict in verdicts)
        print(f"rules: {kept} kept, {len(verdicts) - kept - unseen} broken, {unseen} with nothing to judge")
        for verdict in verdicts:
            if verdict.verdict == "broken":
                frames = ", ".join(map(str, verdict.frames)) + (", ..." if verdict.broken > len(verdict.frames) else "")
                who = " and ".join(verdict.by)
                print(f"  BROKEN {verdict.rule.id} by the {who}: frames {frames}")
                print(f"         {verdict.rule.text} [{verdict.rule.section}]")
        outcome = "FAIL" if self._summary.broken else "ok"
        print(f"{name}: {outcome} ({judge.frames} frames, {len(judge.gaps)} things not judged)")

    def _latencies(self) -> None:
        if not self._summary.latencies:
            return
        print(_LATENCY_HEADING)
        for name, sums in sorted(self._summary.latencies.items()):
            if not sums.count:
                continue
            values = [sums.percentile(p) for p in (50, 90, 99)] + [sums.largest]
            shown = " ".join(f"{value * 1000:>9.3f}" for value in values)
            print(f"{name:<15} {sums.count:>8} {sums.errors:>7} {sums.bytes:>13} {shown}")


def _connection(connection: Connection) -> str:
    """Return the summary of one connection."""
    client, server = (f"{host}:{port}" for host, port in (connection.client, connection.server))
    text = f"#{connection.number} {connection.fabric} {client} -> {server}: {connection.messages} messages"
    negotiated = connection.exchange.negotiated
    if negotiated.dialect:
        text += f", SMB {negotiated.dialect >> 8}.{negotiated.dialect >> 4 & 15}.{negotiated.dialect & 15}"
    if connection.wire is not None:
        sums = connection.counters
        text += f", RDMA Read {sums.rdma_read_bytes} and Write {sums.rdma_write_bytes} bytes"
        text += f", {sums.invalidations} invalidations"
        text += "".join(f", {count} {name}" for name, count in sorted(connection.wire.counts.items()))
    if broken := connection.verdicts.broken.total():
        text += f", {broken} times a rule broken"
    return text

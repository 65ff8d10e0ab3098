"""A judged capture as JSON: one object per line, in the order in which things end. docs/captures.md lists the fields.

Fields are only ever added.
"""

from __future__ import annotations

import json

from smb3server.lab.pcap.judge import Judge
from smb3server.lab.pcap.rdma import RdmaMessage
from smb3server.lab.pcap.records import CommandRecord
from smb3server.lab.pcap.summary import Summary
from smb3server.lab.pcap.verdicts import Breach, Gap


def _print(what: str, **fields: object) -> None:
    print(json.dumps({"type": what} | fields))


class JsonReport:
    """Prints a capture. ``show_commands`` and ``show_messages`` choose what is printed beside verdicts."""

    def __init__(self, summary: Summary, show_commands: bool, show_messages: bool) -> None:
        self._summary = summary
        self._filter = summary.filter
        self._commands, self._messages = show_commands, show_messages

    def command(self, record: CommandRecord) -> None:
        """Print a command."""
        if not self._filter.shows(record):
            return
        self._summary.command(record)
        if not self._commands:
            return
        _print(
            "command",
            connection=record.connection,
            frame=record.number or None,
            reply_frame=record.reply or None,
            time=record.time,
            latency=record.latency,
            command=record.name,
            status=record.status,
            status_name=None if record.status is None else record.status_name,
            message_id=record.message_id,
            session_id=record.session_id,
            tree_id=record.tree_id,
            share=record.share,
            file=record.file,
            bytes=record.bytes,
            way=record.way or None,
            rdma_frames=record.operations,
            rdma_operations=record.operation_count,
            **{"async": record.asynchronous},
            signed=record.signed,
            encrypted=record.encrypted,
            credit_charge=record.charge,
            credits_requested=record.requested,
            credits_granted=record.granted,
        )

    def rdma(self, connection: int, message: RdmaMessage) -> None:
        """Print a message of the fabric."""
        if self._messages:
            _print(
                "message",
                connection=connection,
                frame=message.number,
                time=message.time,
                sender=message.direction.sender,
                kind=message.kind.value,
                bytes=message.length,
                token=message.token,
                address=message.address,
                invalidated=message.invalidated,
            )

    def breach(self, breach: Breach) -> None:
        """Print a broken rule."""
        if self._filter.chooses(breach):
            self._summary.breach(breach)
            _print(
                "breach",
                connection=breach.connection,
                frame=breach.number,
                rule=breach.rule.id,
                section=breach.rule.section,
                by=breach.by,
                text=breach.text,
            )

    def gap(self, gap: Gap) -> None:
        """Print what cannot be judged."""
        _print("gap", connection=gap.connection, frame=gap.number, reason=gap.reason, key_would_help=gap.secret)

    def finish(self, name: str, judge: Judge) -> None:
        """Print the sums."""
        for connection in judge.connections:
            sums = connection.counters
            _print(
                "connection",
                connection=connection.number,
                fabric=connection.fabric,
                client=list(connection.client),
                server=list(connection.server),
                begun_in_capture=connection.saw_start,
                messages=connection.messages,
                dialect=connection.exchange.negotiated.dialect or None,
                rdma_read_bytes=sums.rdma_read_bytes,
                rdma_write_bytes=sums.rdma_write_bytes,
                inline_read_bytes=sums.inline_read_bytes,
                inline_write_bytes=sums.inline_write_bytes,
                invalidations=sums.invalidations,
                packets=dict(connection.wire.counts) if connection.wire is not None else {},
                broken=dict(connection.verdicts.broken),
            )
        for command, latencies in sorted(self._summary.latencies.items()):
            _print(
                "latency",
                command=command,
                count=latencies.count,
                errors=latencies.errors,
                bytes=latencies.bytes,
                p50=latencies.percentile(50),
                p90=latencies.percentile(90),
                p99=latencies.percentile(99),
                max=latencies.largest,
            )
        for verdict in self._summary.verdicts(judge):
            _print(
                "verdict",
                rule=verdict.rule.id,
                section=verdict.rule.section,
                text=verdict.rule.text,
                verdict=verdict.verdict,
                checked=verdict.checked,
                broken=verdict.broken,
                by=list(verdict.by),
                frames=list(verdict.frames),
            )
        _print(
            "summary",
            file=name,
            frames=judge.frames,
            connections=len(judge.connections),
            clean=not self._summary.broken,
            gaps=len(judge.gaps),
        )

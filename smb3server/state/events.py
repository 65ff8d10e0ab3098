"""What the operator is told of logons, shares and connections: one function for each event.

An event is a line of text and, for programs, a name with fields. Both are made here, so they agree. An event concerns a
component of the log (``process.log_levels``). What a peer has chosen is quoted, so that it cannot read like a part of
the line. Nothing here is secret: no password, no key, no token.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from smb3server.access.identity import Identity
from smb3server.process.log_lines import Event, printable
from smb3server.process.words import MAX_NAME, amount, duration, endpoint, ordinal, quoted
from smb3server.state import audit, recent_events, windows_events
from smb3server.state.objects import Connection, Open, Session, TreeConnect
from smb3server.state.recent_events import RecentEvents
from smb3server.state.share import Share
from smb3server.wire.header import Command
from smb3server.wire.negotiate import DIALECT_NAMES
from smb3server.wire.status import NtStatus, Reason, StatusError

Fields = dict[str, object]

_auth = logging.getLogger("smb3server.auth")
_net = logging.getLogger("smb3server.net")
_files = logging.getLogger("smb3server.files")

WINDOW = 60.0
"""Seconds in which failed logons of one user from one address are counted for the log."""
MAX_COUNTED = 100
"""Failures counted of one user and address."""
MAX_PAIRS = 1024
"""Pairs of user and address whose failures are counted."""
_UNKNOWN = Reason("other", "")


def user_name(identity: Identity | None) -> str:
    """Return the name of a session's user: of an account, of a guest, or ANONYMOUS. Empty before the logon."""
    return "" if identity is None else str(identity)


def dialect_name(dialect: int) -> str:
    """Return the dialect as in "3.1.1"; empty before there is one."""
    return DIALECT_NAMES.get(dialect, "")


def fabric_of(connection: Connection) -> str:
    """Return what carries the connection: tcp, or the RDMA fabric."""
    return connection.transport.fabric


def status_name(status: int) -> str:
    """Return the name of a status without its prefix, such as LOGON_FAILURE."""
    try:
        return NtStatus(status).name
    except ValueError:
        return f"0x{status:08x}"


def command_name(command: int) -> str:
    """Return the name of a command, such as TREE_CONNECT."""
    try:
        return Command(command).name
    except ValueError:
        return f"0x{command:x}"


def of_connection(connection: Connection) -> Fields:
    """Return the fields that say which client an event is about."""
    host, port = connection.transport.peer_address
    return {
        "client": host,
        "port": port,
        "transport": fabric_of(connection),
        "dialect": dialect_name(connection.dialect),
    }


def of_session(session: Session, connection: Connection | None = None) -> Fields:
    """Return the fields that say whose session an event is about. ``connection``: where its request came from."""
    return {
        "user": user_name(session.identity),
        **of_connection(connection or session.connection),
        "session": f"0x{session.session_id:016x}",
    }


@dataclass(slots=True)
class Carried:
    """What the ended connections of one fabric have carried, in bytes."""

    received: int = 0
    sent: int = 0
    rdma_received: int = 0
    rdma_sent: int = 0
    retransmissions: int = 0
    connections: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    """Of SMB Direct, by the name of its counter."""


@dataclass(slots=True)
class Counts:
    """Events since the start of the server."""

    logons: int = 0
    refused_logons: Counter[str] = field(default_factory=Counter)
    """By ``Reason.code``."""
    refused_shares: Counter[str] = field(default_factory=Counter)
    """By ``Reason.code``."""
    refused_connections: int = 0
    denied: int = 0
    """Requests on shares that were refused for lack of rights."""
    idle_sessions: int = 0
    """Sessions that were ended because nobody used them."""
    ended_sessions: int = 0
    """Sessions that ended in another way than by their client's logoff, while their connection went on."""
    logoffs: int = 0
    carried: dict[str, Carried] = field(default_factory=dict)
    """By fabric. The connections in use are not in it."""


class Events:
    """The events of one server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = Counts()
        self._clock = clock
        self._failures: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()
        """Times of the latest failed logons, by user and address. Invariant: at most ``MAX_PAIRS``, the one with the
        oldest failure first."""

        self.recent, self.recent_audit = RecentEvents(), RecentEvents()
        """What programs that read event logs see: the events that Windows has a number for, and those of the audit."""

    def _tell(self, log: logging.Logger, level: int, name: str, text: str, fields: Fields, case: str = "") -> None:
        """Write the line of an event, and remember it. ``case``: tells apart what Windows has several numbers for."""
        known = windows_events.EVENTS.get((name, case))
        number = known.number if known is not None and known.is_shown else 0
        if number:
            kind = recent_events.WARNING if level >= logging.WARNING else recent_events.INFORMATION
            self.recent.add(number, kind, recent_events.SERVER_SOURCE, printable(text))
        if log.isEnabledFor(level):
            text += f", event_id={number}" if number else ""
            told = {**fields, **windows_events.fields_of(known)}
            log.log(level, "%s", text, extra={"event": Event(name, str(fields.get("client", "")), told)})

    # Logons

    def logon_accepted(self, session: Session, connection: Connection, mechanism: str) -> None:
        """A session is valid."""
        self.counts.logons += 1
        if not _auth.isEnabledFor(logging.INFO):
            return
        fields = of_session(session, connection)
        guard = _guard(session)
        kind = "guest" if session.is_guest else "anonymous" if session.is_anonymous else "user"
        packed = connection.compression.name if connection.compression is not None else ""
        text = f"logon: {_subject(session)} from {_from(connection)}, {mechanism}, {guard}"
        text += f"{f', {packed}' if packed else ''}, session {fields['session']}"
        more = {"kind": kind, "mechanism": mechanism, "protection": guard}
        self._tell(
            _auth, logging.INFO, "logon", text, {**fields, **more, **({"compression": packed} if packed else {})}
        )

    def channel_bound(self, session: Session, connection: Connection) -> None:
        """A session has one more connection."""
        if not _auth.isEnabledFor(logging.INFO):
            return
        count = len(session.channel_list)
        fields = of_session(session, connection)
        text = (
            f"channel {count} of session {fields['session']}: user {quoted(user_name(session.identity))} "
            f"from {_from(connection)}"
        )
        self._tell(_auth, logging.INFO, "channel", text, {**fields, "channels": count})

    def logon_refused(self, connection: Connection, user: str, error: StatusError, binding: bool) -> None:
        """A logon, or the binding of a session to one more connection, has failed. ``user``: as the client named it."""
        what = "channel refused" if binding else "logon refused"
        self._refused(what, user, of_connection(connection), _from(connection), error.status, error.reason)

    def rpc_logon_refused(self, host: str, user: str, error: Exception, reason: Reason | None) -> None:
        """A logon on a connection of RPC, or on a pipe, has failed."""
        fields: Fields = {"client": host, "transport": "rpc"}
        self._refused("RPC logon refused", user, fields, host, 0, reason or Reason("rpc", str(error)))

    def _refused(self, what: str, user: str, fields: Fields, client: str, status: int, reason: Reason | None) -> None:
        known = reason or _UNKNOWN
        self.counts.refused_logons[known.code] += 1
        number = self._count_failure(user, str(fields["client"]))
        words = _because(known, status)
        text = f"{what}: {f'user {quoted(user)}' if user else 'no user named'} from {client}: {words}"
        if number > 1:
            text += f", {ordinal(number)} failure in {WINDOW:.0f} s"
        self._tell(
            _auth,
            logging.WARNING,
            what.replace(" ", "_").lower(),
            text,
            {
                "user": printable(user, MAX_NAME),
                **fields,
                "status": status_name(status) if status else "",
                "reason": known.code,
                "detail": printable(known.text),
                "failures": number,
            },
            known.code,
        )

    def _count_failure(self, user: str, host: str) -> int:
        """Count a failed logon. Return how many of the last ``WINDOW`` seconds there are of this user and address."""
        key, now = (user[:MAX_NAME].casefold(), host), self._clock()
        times = self._failures.pop(key, None) or deque(maxlen=MAX_COUNTED)
        while times and times[0] < now - WINDOW:
            times.popleft()
        times.append(now)
        self._failures[key] = times
        if len(self._failures) > MAX_PAIRS:
            self._failures.popitem(last=False)
        return len(times)

    def session_ended(self, session: Session, connection: Connection, why: str) -> None:
        """A session has ended while its connection goes on. ``why``: "logoff", "idle", or in words who ended it."""
        self.counts.logoffs += why == "logoff"
        self.counts.idle_sessions += why == "idle"
        self.counts.ended_sessions += why != "logoff"
        if session.identity is None or not _auth.isEnabledFor(logging.INFO):
            return
        seconds = time.time() - session.creation_time
        name = "logoff" if why == "logoff" else "session_ended"
        words = "" if why == "logoff" else f": {why}"
        after = f"after {duration(seconds)}{words}"
        text = f"{name.replace('_', ' ')}: {_subject(session)} from {_from(connection)} {after}"
        fields = {**of_session(session, connection), "seconds": round(seconds, 3), "reason": why}
        self._tell(_auth, logging.INFO, name, text, fields)

    # Shares

    def tree_connected(self, tree: TreeConnect, connection: Connection) -> None:
        """A session uses a share. IPC$, which every client uses, is told at the level debug."""
        share, session = tree.share, tree.session
        level = logging.INFO if share.backend is not None else logging.DEBUG
        if share.audit is None and not _files.isEnabledFor(level):
            return
        fields = {**of_session(session, connection), "share": share.name, "access": f"0x{tree.maximal_access:08x}"}
        text = f"share {share.name}: {_subject(session)} from {_from(connection)} connected"
        self._tell(_files, level, "tree_connect", text, fields)
        if share.audit is not None:
            audit.record(share.audit, audit.CONNECT, fields, "success")

    def tree_refused(
        self, session: Session, connection: Connection, name: str, share: Share | None, error: StatusError
    ) -> None:
        """A session may not use a share, or there is none of the name. ``name``: as the client wrote it."""
        reason = error.reason or _UNKNOWN
        self.counts.refused_shares[reason.code] += 1
        fields = {
            **of_session(session, connection),
            "share": printable(name, MAX_NAME),
            "status": status_name(error.status),
            "reason": reason.code,
            "detail": printable(reason.text),
        }
        text = (
            f"share {quoted(name)} refused: {_subject(session)} from {_from(connection)}: "
            f"{_because(reason, error.status)}"
        )
        case = "anonymous" if session.is_anonymous and reason.code in ("user", "permissions") else reason.code
        self._tell(_files, logging.WARNING, "tree_connect_refused", text, fields, case)
        if share is not None and share.audit is not None:
            audit.record(share.audit, audit.DENIED, fields, status_name(error.status), "share")

    def tree_disconnected(self, tree: TreeConnect, connection: Connection) -> None:
        """A session uses a share no longer."""
        if not _files.isEnabledFor(logging.DEBUG):
            return
        fields = {**of_session(tree.session, connection), "share": tree.share.name}
        text = f"share {tree.share.name}: {_subject(tree.session)} from {_from(connection)} disconnected"
        self._tell(_files, logging.DEBUG, "tree_disconnect", text, fields)

    # Requests and opens

    def request_refused(self, session: Session, connection: Connection, command: int, reason: Reason) -> None:
        """A request is not protected as its session or its share demands. [MS-SMB2 3.3.5.2.4, 3.3.5.2.9, 3.3.5.2.11]"""
        name = command_name(command)
        text = f"{name} refused: {_subject(session)} from {_from(connection)}: {reason.text}"
        fields = {**of_session(session, connection), "command": name, "reason": reason.code, "detail": reason.text}
        self._tell(_auth, logging.WARNING, "request_refused", text, fields, reason.code)

    def reopen_failed(self, session: Session, share: Share, path: str, kind: str, status: int) -> None:
        """A client has come back for an open that it cannot have. ``kind``: durable or persistent, as it asked.
        [MS-SMB2 3.3.5.9.7, 3.3.5.9.12]"""
        if not _files.isEnabledFor(logging.INFO):
            return
        fields = {**of_session(session), "share": share.name, "path": printable(path), "kind": kind}
        text = f"no {kind} open of {quoted(path)} in share {share.name} to come back to: {_subject(session)} from "
        text += f"{_from(session.connection)} ({status_name(status)})"
        self._tell(_files, logging.INFO, "reopen_failed", text, {**fields, "status": status_name(status)})

    def open_expired(self, opened: Open) -> None:
        """The client of a durable open did not come back in time."""
        if not _files.isEnabledFor(logging.INFO) or opened.durable is None:
            return
        path, durable = "/".join(opened.path), opened.durable
        fields: Fields = {
            "user": user_name(opened.session.identity),
            "share": opened.tree.share.name,
            "path": printable(path),
            "kind": durable.kind,
            "seconds": durable.timeout,
        }
        text = f"{durable.kind} open of {quoted(path)} in share {opened.tree.share.name} closed: its client did not "
        self._tell(_files, logging.INFO, "open_expired", f"{text}come back within {duration(durable.timeout)}", fields)

    # Connections

    def connection_accepted(self, connection: Connection) -> None:
        """A client has connected."""
        if not _net.isEnabledFor(logging.DEBUG):
            return
        text = f"connection from {_from(connection)}"
        self._tell(_net, logging.DEBUG, "connection", text, of_connection(connection))

    def connection_refused(self, address: tuple[str, int], why: str) -> None:
        """A client was turned away."""
        self.counts.refused_connections += 1
        fields = {"client": address[0], "port": address[1], "reason": why}
        self._tell(
            _net, logging.WARNING, "connection_refused", f"connection refused: {endpoint(address)}: {why}", fields
        )

    def connection_ended(self, connection: Connection, error: BaseException | None) -> None:
        """A connection has ended. ``error``: what the transport reports."""
        carried = self._carry(connection)
        by = "server" if connection.ended_by else "client" if error is None else "network"
        users = connection.users
        # Port scanners and health checks come and go without a word.
        quiet = not users and by == "client"
        level = logging.WARNING if connection.broke_protocol else logging.DEBUG if quiet else logging.INFO
        if not _net.isEnabledFor(level):
            return
        seconds = time.time() - connection.creation_time
        why = connection.ended_by or (str(error) if error is not None else "closed by the client")
        who = f"user {', '.join(map(quoted, users))}, " if users else "nobody logged on, "
        text = (
            f"connection ended: {who}{_from(connection)}, {duration(seconds)}, "
            f"{amount(carried.received + carried.rdma_received)} received, "
            f"{amount(carried.sent + carried.rdma_sent)} sent: {printable(why)}"
        )
        fields = {
            "user": ", ".join(users),
            **of_connection(connection),
            "seconds": round(seconds, 3),
            "bytes_received": carried.received,
            "bytes_sent": carried.sent,
            "rdma_bytes_received": carried.rdma_received,
            "rdma_bytes_sent": carried.rdma_sent,
            "ended_by": by,
            "protocol_error": connection.broke_protocol,
            "reason": printable(why),
        }
        self._tell(
            _net, level, "connection_ended", text, fields, connection.ended_case or ("client" if by == "client" else "")
        )

    def _carry(self, connection: Connection) -> Carried:
        """Add what an ended connection has carried to the total. Return its own part."""
        found = connection.transport.traffic
        own = Carried(
            found.inline_bytes_received,
            found.inline_bytes_sent,
            found.rdma_read_bytes,
            found.rdma_write_bytes,
            found.retransmissions,
        )
        total = self.counts.carried.setdefault(fabric_of(connection), Carried())
        total.received += own.received
        total.sent += own.sent
        total.rdma_received += own.rdma_received
        total.rdma_sent += own.rdma_sent
        total.retransmissions += own.retransmissions
        total.connections += 1
        if connection.is_smb_direct:
            total.operations.update(connection.transport.counters)
        return own


def _subject(session: Session) -> str:
    if session.is_anonymous:
        return "anonymous user"
    return f"{'guest' if session.is_guest else 'user'} {quoted(user_name(session.identity))}"


def _from(connection: Connection) -> str:
    dialect = dialect_name(connection.dialect)
    over = f"{fabric_of(connection)}, SMB {dialect}" if dialect else fabric_of(connection)
    return f"{endpoint(connection.transport.peer_address)} ({over})"


def _guard(session: Session) -> str:
    if session.encrypt_data:
        return "encrypted"
    if session.signing_required:
        return "signed"
    return "unsigned" if session.signer is None else "signing not required"


def _because(reason: Reason, status: int) -> str:
    name = f"({status_name(status)})" if status else ""
    return " ".join(part for part in (printable(reason.text), name) if part)

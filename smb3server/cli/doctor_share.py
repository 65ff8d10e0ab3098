"""The doctor as a client: log on, read the interface list, try every fabric, bind a channel, move data through it."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import os
import socket
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spnego.exceptions import SpnegoError

from smb3server.cli.doctor_network import banner, explain, explain_fabric
from smb3server.cli.doctor_transfer import Garbled, Moved, Stalled, move
from smb3server.cli.findings import Finding, Verdict
from smb3server.client import Client, ClientSession, ServerError, Tree, open_rdma, open_tcp
from smb3server.client.channels import BoundSession
from smb3server.client.interfaces import ServerInterface, query_interfaces
from smb3server.client.messages import Caller
from smb3server.client.ways import Way
from smb3server.net.host import SMB_DIRECT_PORT, SMB_PORT
from smb3server.status import mount_commands
from smb3server.status.report import dialect_name
from smb3server.wire.negotiate import Capability, Dialect
from smb3server.wire.session import SessionFlags
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.errors import ConnectionLost, DecodeError, ProtocolError, ProviderError
from smbdirect.providers.make import make_provider

ATTEMPT_TIMEOUT = 5.0
"""Seconds for one RDMA connection."""
CONNECT_TIMEOUT = 5.0
"""Seconds for the TCP connection."""
LOGON_TIMEOUT = 20.0
"""Seconds for what is asked over TCP: negotiation, logon, the list of interfaces."""
MOVE_TIMEOUT = 60.0
"""Seconds for moving the data, enough for a slow network."""
TRANSFORMS_WANTED = (
    "let the server offer RDMA transforms in dialect 3.1.1 (smb3server: rdma_transforms; Windows Server 2022 or later)"
)
MAX_EXPLAINED = 2
"""Largest number of addresses that do not answer to look at more closely, for each fabric."""
MAX_ADDRESSES = 8
"""Largest number of RDMA capable addresses to try."""
TROUBLE = (
    OSError,
    ConnectionLost,
    ProviderError,
    ProtocolError,
    DecodeError,
    StatusError,
    SpnegoError,
    Garbled,
    Stalled,
)


_LOGON_REMEDIES: dict[int, str] = {
    NtStatus.ACCOUNT_LOCKED_OUT: "wait until the account is unlocked, or unlock it on the server",
    NtStatus.ACCOUNT_DISABLED: "enable the account on the server, or use another one",
    NtStatus.PASSWORD_EXPIRED: "change the password",
    NtStatus.ACCOUNT_RESTRICTION: "the account may not log on this way: give it a password, or use another one",
}
_SHARE_REMEDIES: dict[int, str] = {
    NtStatus.BAD_NETWORK_NAME: "there is no such share on this server (a cluster's share is at its service's address):"
    " `smbclient -L` lists what there is",
    NtStatus.ACCESS_DENIED: "{user} may not use it, or not from this address (smb3server: users, hosts_allow of the"
    " share); use another account, or add this one",
}
_MTU_REMEDY = (
    "somewhere on the way large packets are dropped: make the MTU the same on both ends and all switches"
    " (`ip link show`), let ICMP through, and try `ping -M do -s 1472 {address}` (1472 for MTU 1500, 8972 for 9000)"
)


class Answer(enum.Enum):
    """The answer to the question whether RDMA is used."""

    USED = "used"
    """Data was moved by RDMA at an address that clients find by themselves."""
    POSSIBLE = "possible"
    """A fabric answers, but no data was moved by RDMA, or clients find it only if they name it."""
    NOT_USED = "not-used"
    UNKNOWN = "unknown"
    """The doctor could not find out."""


class Target(NamedTuple):
    """The share to examine, and the account to use."""

    host: str
    port: int
    share: str
    """Empty if no share was named."""
    user: str
    password: str
    fabrics: tuple[str, ...]
    rdma_port: int | None


@dataclass(slots=True)
class Attempt:
    """One attempt on one fabric, address and port."""

    fabric: str
    address: str
    port: int
    worked: bool
    text: str
    moved: Moved | None = None
    """Data moved through the share in this attempt."""


@dataclass(slots=True)
class Result:
    """The findings about a share, and the answer."""

    findings: list[Finding] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interfaces: list[ServerInterface] = field(default_factory=list)
    reached: bool = False
    answer: Answer = Answer.UNKNOWN
    verdict: str = ""

    @property
    def rdma(self) -> bool:
        """Whether RDMA is used."""
        return self.answer is Answer.USED

    def add(self, verdict: Verdict, subject: str, text: str, remedy: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(verdict, subject, text, remedy))

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "reached": self.reached,
            "rdma": self.rdma,
            "answer": self.answer.value,
            "verdict": self.verdict,
            "interfaces": [
                {"number": entry.number, "address": str(entry.address), "speed": entry.speed, "rdma": entry.rdma}
                for entry in self.interfaces
            ],
            "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts],
            "findings": [finding.as_json() for finding in self.findings],
        }


class _Patient:
    """What the doctor has learned on the way to its verdict."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.result = Result()
        self.client_guid: bytes | None = None
        self.obstacle = ""
        """The first thing that keeps clients from using RDMA."""
        self.session: ClientSession | None = None
        """The session over TCP, to which further channels are bound."""
        self.tree: Tree | None = None
        """The share's tree connect in ``session``."""
        self.may_log_on = True
        """False once a logon was refused: another attempt might lock the account."""
        self.dead = False
        """Whether the host does not answer at all."""
        self.stalled = ""
        """Why data does not get through an RDMA connection that stands."""
        self.unknown = ""
        """The first thing that kept the doctor from finding out."""
        self.inline = ""
        """Why data would travel inline even on an RDMA connection."""
        self.moved_by: set[str] = set()
        """Fabrics that have moved data; one transfer on each is enough."""

    def block(self, why: str) -> None:
        self.obstacle = self.obstacle or why

    def give_up(self, why: str) -> None:
        self.unknown = self.unknown or why


async def consult(target: Target) -> Result:
    """Examine a share as a client would. Errors of servers become findings and are never raised."""
    patient = _Patient(target)
    result = patient.result
    tcp = await _by_tcp(patient)
    try:
        if not patient.dead:
            await _try_fabrics(patient)
    finally:
        if tcp is not None:
            await tcp.close()
    result.reached = tcp is not None or any(attempt.worked for attempt in result.attempts)
    _judge(patient)
    _advise(patient)
    return result


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        # asyncio's own text contains the address, but not the reason.
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


async def _by_tcp(patient: _Patient) -> Client | None:
    """Connect, negotiate, log on and query the interfaces. Return None if no SMB server answers."""
    target, result = patient.target, patient.result
    where = f"{target.host} port {target.port}"
    try:
        transport = await open_tcp(target.host, target.port, CONNECT_TIMEOUT)
    except OSError as error:
        trouble = await explain(target.host, target.port, error)
        result.add(Verdict.PROBLEM, "tcp", f"{where}: {trouble.text}", trouble.remedy)
        patient.block(f"TCP port {target.port} does not answer: {trouble.text}")
        patient.dead = trouble.dead
        return None
    client: Client | None = None
    try:
        async with asyncio.timeout(LOGON_TIMEOUT):
            client = await Client.connect(transport)
            await _negotiated(patient, client)
    except TROUBLE as error:
        if client is not None:
            result.add(Verdict.PROBLEM, "tcp", f"{where}: {_text(error)}")
            patient.give_up(f"the connection over TCP failed: {_text(error)}")
            return client
        said = await banner(target.host, target.port)
        service = f' (it says "{said}")' if said else ""
        text = f"what answers there is no SMB server{service}, or none that speaks SMB 2 or 3: {_text(error)}"
        remedy = f"stop the other service, or name the server's port: //{target.host}:PORT/SHARE"
        result.add(Verdict.PROBLEM, "tcp", f"{where}: {text}", remedy)
        patient.block(f"on TCP port {target.port}, {text}")
    return client


async def _negotiated(patient: _Patient, client: Client) -> None:
    """Look at what was negotiated over TCP, then log on and query the interfaces."""
    result = patient.result
    patient.client_guid = client.client_guid
    name = dialect_name(client.dialect)
    if client.dialect < Dialect.SMB_3_0:
        result.add(Verdict.PROBLEM, "dialect", f"{name}: RDMA needs 3.0", "raise the server's maximum dialect")
        patient.inline = f"the server speaks dialect {name}, and RDMA needs 3.0"
        patient.block(patient.inline)
    else:
        result.add(Verdict.OK, "dialect", name)
    if client.negotiated.capabilities & Capability.MULTI_CHANNEL:
        result.add(Verdict.OK, "multichannel", "offered by the server")
    else:
        result.add(Verdict.PROBLEM, "multichannel", "not offered by the server", "turn it on in the server")
        patient.block("the server does not offer multichannel")
    if client.negotiated.signing_required:
        _protected(patient, client, "signing", "the server requires signing", Way.RDMA_SIGNED, "do not require signing")
    await _logged_on(patient, client)


def _protected(patient: _Patient, client: Caller, subject: str, what: str, way: Way, instead: str) -> None:
    """Find out whether data that must be signed or encrypted can go by RDMA. [MS-SMB2 3.2.4.7]"""
    transform = way.transform
    if transform in client.negotiated.rdma_transforms:
        patient.result.add(Verdict.OK, subject, f"{what}: data can go by {way.value}")
        return
    why = f"{what}, and without an RDMA transform for {transform.name.lower()} its data goes inline"
    patient.inline = patient.inline or why
    patient.result.add(Verdict.WARNING, subject, why, f"{TRANSFORMS_WANTED}, or {instead} on a trusted network")


async def _logged_on(patient: _Patient, client: Client) -> None:
    target, result = patient.target, patient.result
    try:
        session = await client.log_on(target.user, target.password)
    except TROUBLE as error:
        remedy = "check name and password" if target.password else "give --user NAME:PASSWORD"
        if isinstance(error, StatusError):
            remedy = _LOGON_REMEDIES.get(error.status, remedy)
        result.add(Verdict.PROBLEM, "logon", f"{target.user}: {_text(error)}", remedy)
        patient.give_up(f"the logon failed: {_text(error)}")
        patient.may_log_on = False
        return
    if session.flags & (SessionFlags.IS_GUEST | SessionFlags.IS_NULL):
        result.add(
            Verdict.WARNING, "logon", f"{target.user} is a guest: guests open no further channels", "use an account"
        )
        patient.block("guests and anonymous users have no key, so they cannot open further channels")
    else:
        result.add(Verdict.OK, "logon", target.user)
        patient.session = session
    if session.encrypt:
        what, instead = "the server encrypts every session", "encrypt single shares only"
        _protected(patient, client, "encryption", what, Way.RDMA_ENCRYPTED, instead)
    await _share(patient, session)
    await _interfaces(patient, session)


async def _share(patient: _Patient, session: ClientSession) -> None:
    target, result = patient.target, patient.result
    if not target.share:
        result.add(Verdict.NOTE, "share", "none was named, so no data is moved", "name one: //HOST/SHARE")
        return
    try:
        tree = await session.tree_connect(target.share)
    except TROUBLE as error:
        remedy = "check the share's name, and which users may use it"
        if isinstance(error, StatusError):
            remedy = _SHARE_REMEDIES.get(error.status, remedy).format(user=target.user)
        result.add(Verdict.PROBLEM, "share", f"{target.share}: {_text(error)}", remedy)
        patient.give_up(f"share {target.share} cannot be used: {_text(error)}")
        return
    patient.tree = tree if patient.session is session else None
    if session.encrypts(tree.tree_id) and not session.encrypt:
        what, instead = f"share {target.share} is encrypted", "share it without encryption"
        _protected(patient, session.client, "share", what, Way.RDMA_ENCRYPTED, instead)
    else:
        result.add(Verdict.OK, "share", target.share)


async def _interfaces(patient: _Patient, session: ClientSession) -> None:
    result = patient.result
    try:
        result.interfaces = await query_interfaces(await session.tree_connect("IPC$"))
    except TROUBLE as error:
        refused = isinstance(error, ServerError) and error.status == NtStatus.NOT_SUPPORTED
        text = "the server has no such list" if refused else _text(error)
        result.add(Verdict.PROBLEM, "interface list", text)
        patient.block(f"no list of interfaces: {text}")
        return
    for entry in result.interfaces:
        flag = "RDMA capable" if entry.rdma else "not RDMA capable"
        verdict = Verdict.OK if entry.rdma else Verdict.NOTE
        result.add(verdict, "interface", f"{entry.address}, {entry.speed // 1_000_000} Mbit/s: {flag}")
    if not any(entry.rdma for entry in result.interfaces):
        result.add(
            Verdict.PROBLEM,
            "interface list",
            "no address of the server is RDMA capable",
            "start the server with --rdma, and look at `smb3server doctor` there"
            " (a Windows server: Get-NetAdapterRdma, Enable-NetAdapterRdma)",
        )
        patient.block("no interface in the server's list is RDMA capable")


async def _addresses(patient: _Patient) -> list[str]:
    """Return the RDMA capable addresses of the server's list, then the host that was named."""
    found = [str(entry.address) for entry in patient.result.interfaces if entry.rdma]
    target = patient.target
    try:
        named = await asyncio.get_running_loop().getaddrinfo(target.host, None, type=socket.SOCK_STREAM)
    except OSError:
        named = []
    own = [str(address[0]) for *_, address in named]
    return list(dict.fromkeys([*(host for host in own if host in found), *found, *own]))[:MAX_ADDRESSES]


async def _try_fabrics(patient: _Patient) -> None:
    result, target = patient.result, patient.target
    addresses = await _addresses(patient)
    silent: list[str] = []
    for fabric in target.fabrics:
        try:
            provider = make_provider(fabric)
        except ProviderError as error:
            result.add(Verdict.NOTE, fabric, f"cannot be tried from here: {error}")
            continue
        # Over iWARP clients do not try 445, although a server may answer there. [MS-SMBD 1.9]
        usual = (SMB_DIRECT_PORT,) if fabric == "iwarp" else (SMB_DIRECT_PORT, SMB_PORT)
        ports = (target.rdma_port,) if target.rdma_port else usual
        tried: list[Attempt] = []
        for address in addresses:
            for port in ports:
                tried.append(await _attempt(patient, provider, fabric, address, port))
                if tried[-1].worked:
                    break
        result.attempts += tried
        worked = [attempt for attempt in tried if attempt.worked]
        for attempt in worked or tried[:2]:
            verdict = Verdict.OK if attempt.worked else Verdict.NOTE
            result.add(verdict, fabric, f"{attempt.address} port {attempt.port}: {attempt.text}")
        if not worked:
            silent += await _explain_silence(patient, fabric, ports)
    if silent and not any(attempt.worked for attempt in result.attempts):
        patient.block("; ".join(silent))


async def _explain_silence(patient: _Patient, fabric: str, ports: tuple[int, ...]) -> list[str]:
    """Add why a fabric does not answer at the addresses that the server says are RDMA capable. Return the reasons.

    Which fabric is served there is not in the list, so software fabrics are explained only."""
    if fabric == "verbs":
        return []
    reasons: list[str] = []
    for entry in patient.result.interfaces:
        if entry.rdma and len(reasons) < MAX_EXPLAINED:
            trouble = await explain_fabric(fabric, str(entry.address), ports)
            patient.result.add(Verdict.NOTE, fabric, trouble.text, trouble.remedy)
            reasons.append(trouble.text)
    return reasons


async def _attempt(patient: _Patient, provider: Any, fabric: str, address: str, port: int) -> Attempt:
    """Connect, negotiate SMB Direct, negotiate SMB, bind a channel if there is a session, and move data."""
    step = "connect"
    client: Client | None = None
    target = patient.target
    attempt = Attempt(fabric, address, port, False, "")
    try:
        async with asyncio.timeout(3 * ATTEMPT_TIMEOUT):
            transport = await open_rdma(provider, address, port, timeout=ATTEMPT_TIMEOUT)
            step = "negotiate"
            client = await Client.connect(transport, client_guid=patient.client_guid)
            limit = transport.rdma.max_read_write_size if transport.rdma is not None else 0
            attempt.text = (
                f"SMB Direct, dialect {dialect_name(client.dialect)}, MaxReadWriteSize {limit}, "
                f"MaxFragmentedSize {transport.max_outbound_message_size}"
            )
            if patient.session is not None and not patient.obstacle:
                step = "bind a channel"
                bound = await BoundSession.bind(patient.session, client, target.user, target.password)
                attempt.text += "; a channel of the session was bound"
                tree = patient.tree.on(bound) if patient.tree is not None else None
            else:
                # Does the same as mounts that request RDMA from the start, whatever keeps other clients from it.
                tree = await _tree_by_rdma(patient, client)
            attempt.worked = True
        if tree is not None and fabric not in patient.moved_by:
            async with asyncio.timeout(MOVE_TIMEOUT):
                await _move(patient, attempt, tree)
    except Stalled:
        patient.stalled = f"small messages get through to {address} by {fabric}, and data does not (MTU black hole)"
        patient.result.add(Verdict.PROBLEM, f"{fabric} data", patient.stalled, _MTU_REMEDY.format(address=address))
    except TROUBLE as error:
        if attempt.worked:
            patient.result.add(Verdict.PROBLEM, f"{fabric} data", _text(error))
            patient.give_up(f"moving data through share {target.share} failed: {_text(error)}")
        else:
            attempt.text = f"{step}: {_text(error)}"
    finally:
        if client is not None and not patient.stalled:
            await client.close()
        elif client is not None:
            client.transport.abort("nothing gets through")
    return attempt


async def _tree_by_rdma(patient: _Patient, client: Client) -> Tree | None:
    target, result = patient.target, patient.result
    if not patient.may_log_on or patient.unknown or not target.share:
        return None
    try:
        session = await client.log_on(target.user, target.password)
        return await session.tree_connect(target.share)
    except TROUBLE as error:
        result.add(Verdict.PROBLEM, "share", f"{target.share} by RDMA: {_text(error)}")
        patient.give_up(f"share {target.share} cannot be used: {_text(error)}")
        patient.may_log_on = False
        return None


async def _move(patient: _Patient, attempt: Attempt, tree: Tree) -> None:
    moved = attempt.moved = await move(tree)
    patient.moved_by.add(attempt.fabric)
    patient.inline = patient.inline or moved.inline
    subject = f"{attempt.fabric} data"
    if not moved.anything:
        patient.result.add(Verdict.NOTE, subject, f"none moved: {moved.text}")
        return
    amounts = f"{moved.way}: {_amounts(moved)}, {moved.in_messages >> 10} KiB in messages; {moved.text}"
    if moved.by_rdma:
        patient.result.add(Verdict.OK, subject, amounts)
    else:
        remedy = TRANSFORMS_WANTED if tree.choice.needs is not None else ""
        patient.result.add(Verdict.WARNING, subject, f"{amounts}; {moved.inline}", remedy)


def _amounts(moved: Moved) -> str:
    return f"{moved.written >> 10} KiB written, {moved.read >> 10} KiB read"


def _advise(patient: _Patient) -> None:
    """Add how clients get to RDMA with this share, and see that they use it."""
    result, target = patient.result, patient.target
    worked = next((attempt for attempt in result.attempts if attempt.worked), None)
    if worked is None or result.answer is Answer.NOT_USED:
        return
    lines = mount_commands.linux_rdma(
        mount_commands.Reach(
            target.share or "SHARE",
            "" if target.user == "guest" else target.user,
            worked.address,
            target.port,
            rdma=[(worked.fabric, worked.address, worked.port)],
        )
    )
    result.add(Verdict.NOTE, "Linux clients", lines)
    result.add(
        Verdict.NOTE,
        "Windows clients",
        "find RDMA by themselves: `Get-NetAdapterRdma` shows the NICs that can,"
        " `Get-SmbMultichannelConnection -IncludeNotSelected` whether this server's connections do",
    )


def _judge(patient: _Patient) -> None:
    """Set the answer and the reason: the first obstacle in the order of a client's steps."""
    result = patient.result
    worked = [attempt for attempt in result.attempts if attempt.worked]
    listed = {str(entry.address) for entry in result.interfaces if entry.rdma}
    fabrics = ", ".join(dict.fromkeys(attempt.fabric for attempt in worked))
    moved = [attempt for attempt in worked if attempt.moved is not None and attempt.moved.by_rdma]
    if not result.reached:
        result.answer, result.verdict = Answer.UNKNOWN, f"it is unknown whether RDMA is used: {patient.obstacle}"
    elif patient.unknown:
        answers = f" ({fabrics} answers)" if worked else ""
        result.answer = Answer.UNKNOWN
        result.verdict = f"it is unknown whether RDMA is used{answers}: {patient.unknown}"
    elif patient.stalled:
        result.answer = Answer.NOT_USED
        result.verdict = f"RDMA is not used, although {fabrics} answers: {patient.stalled}"
    elif not worked:
        why = patient.obstacle or "the server answers on no fabric that could be tried from here"
        result.answer, result.verdict = Answer.NOT_USED, f"RDMA is not used, because {why}"
    elif not moved and patient.inline:
        result.answer = Answer.NOT_USED
        result.verdict = f"RDMA is not used, although {fabrics} answers: {patient.inline}"
    elif patient.obstacle:
        result.answer = Answer.POSSIBLE
        result.verdict = (
            f"RDMA could be used by clients that ask for it ({fabrics} answers), but others do not find it,"
            f" because {patient.obstacle}"
        )
    elif not any(attempt.address in listed for attempt in moved or worked):
        result.answer = Answer.POSSIBLE
        result.verdict = (
            f"RDMA could be used by mounts that name it ({fabrics} answers), but its address is not in the server's"
            " list of interfaces"
        )
    elif not moved:
        result.answer = Answer.POSSIBLE
        result.verdict = f"RDMA could be used ({fabrics} answers), but nothing was moved"
    else:
        result.answer = Answer.USED
        amounts = [
            f"{attempt.moved.way.replace('RDMA', attempt.fabric)} ({_amounts(attempt.moved)})"
            for attempt in moved
            if attempt.moved is not None
        ]
        result.verdict = f"RDMA is used: {', '.join(amounts)}"

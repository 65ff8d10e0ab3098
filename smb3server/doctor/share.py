"""The doctor as a client: log on, read the interface list, try every fabric, bind a channel, move data through it."""

from __future__ import annotations

import asyncio

from smb3server.client.fabrics import reason_of
from smb3server.client.protocol import Client, ClientSession, ServerError, open_tcp
from smb3server.client.protocol.connection import Requests
from smb3server.client.protocol.interfaces import query_interfaces
from smb3server.client.protocol.messages import Way
from smb3server.client.protocol.negotiation import Offer
from smb3server.client.protocol.transports import speaks_smb1
from smb3server.compression.codecs import COMPRESSION
from smb3server.doctor import mount_commands
from smb3server.doctor.fabrics import amounts, try_fabrics
from smb3server.doctor.findings import Verdict
from smb3server.doctor.network import banner, explain
from smb3server.doctor.patient import TRANSFORMS_WANTED, TROUBLE, Answer, Patient, Result, Target
from smb3server.net.host import SMB_DIRECT_PORT, SMB_PORT
from smb3server.status.report import dialect_name
from smb3server.wire.negotiate import Capability, Dialect
from smb3server.wire.session import SessionFlags
from smb3server.wire.status import NtStatus, StatusError

CONNECT_TIMEOUT = 5.0
"""Seconds for the TCP connection."""
LOGON_TIMEOUT = 20.0
"""Seconds for what is asked over TCP: negotiation, logon, the list of interfaces."""
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


async def consult(target: Target) -> Result:
    """Examine a share as a client would. Errors of servers become findings and are never raised."""
    patient = Patient(target)
    result = patient.result
    tcp = await _by_tcp(patient)
    try:
        if not patient.dead:
            await try_fabrics(patient)
    finally:
        if tcp is not None:
            await tcp.close()
    result.reached = tcp is not None or any(attempt.worked for attempt in result.attempts)
    _judge(patient)
    _advise(patient)
    return result


async def _by_tcp(patient: Patient) -> Client | None:
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
            client = await Client.connect(transport, offer=Offer(compression=COMPRESSION))
            await _negotiated(patient, client)
    except TROUBLE as error:
        if client is not None:
            result.add(Verdict.PROBLEM, "tcp", f"{where}: {reason_of(error)}")
            patient.give_up(f"the connection over TCP failed: {reason_of(error)}")
            return client
        if await speaks_smb1(target.host, target.port):
            text, remedy = "the server speaks SMB 1 only", "turn on SMB 2 or 3 there"
        else:
            said = await banner(target.host, target.port)
            service = f' (it says "{said}")' if said else ""
            text = f"what answers there is no SMB server{service}, or none that speaks SMB 2 or 3: {reason_of(error)}"
            remedy = f"stop the other service, or name the server's port: //{target.host}:PORT/SHARE"
        result.add(Verdict.PROBLEM, "tcp", f"{where}: {text}", remedy)
        patient.block(f"on TCP port {target.port}, {text}")
    return client


async def _negotiated(patient: Patient, client: Client) -> None:
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
    agreed = client.negotiated.compression
    if agreed is not None:
        result.add(Verdict.OK, "compression", f"{agreed.name}, where it is asked for (--compress)")
    else:
        result.add(Verdict.NOTE, "compression", "the server has none that this client has")
    if client.negotiated.signing_required:
        _protected(patient, client, "signing", "the server requires signing", Way.RDMA_SIGNED, "do not require signing")
    await _logged_on(patient, client)


def _protected(patient: Patient, client: Requests, subject: str, what: str, way: Way, instead: str) -> None:
    """Find out whether data that must be signed or encrypted can go by RDMA. [MS-SMB2 3.2.4.7]"""
    transform = way.transform
    if transform in client.negotiated.rdma_transforms:
        patient.result.add(Verdict.OK, subject, f"{what}: data can go by {way.value}")
        return
    why = f"{what}, and without an RDMA transform for {transform.name.lower()} its data goes inline"
    patient.inline = patient.inline or why
    patient.result.add(Verdict.WARNING, subject, why, f"{TRANSFORMS_WANTED}, or {instead} on a trusted network")


async def _logged_on(patient: Patient, client: Client) -> None:
    target, result = patient.target, patient.result
    try:
        session = await client.log_on(target.user, target.password, guest=target.guest)
    except TROUBLE as error:
        remedy = "check name and password"
        if not target.password:
            remedy = "give the password: type it when asked, or put it into the variable SMB3SERVER_PASSWORD"
        if isinstance(error, StatusError):
            remedy = _LOGON_REMEDIES.get(error.status, remedy)
        result.add(Verdict.PROBLEM, "logon", f"{target.user}: {reason_of(error)}", remedy)
        patient.give_up(f"the logon failed: {reason_of(error)}")
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


async def _share(patient: Patient, session: ClientSession) -> None:
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
        result.add(Verdict.PROBLEM, "share", f"{target.share}: {reason_of(error)}", remedy)
        patient.give_up(f"share {target.share} cannot be used: {reason_of(error)}")
        return
    patient.tree = tree if patient.session is session else None
    if session.encrypts(tree.tree_id) and not session.encrypt:
        what, instead = f"share {target.share} is encrypted", "share it without encryption"
        _protected(patient, session.client, "share", what, Way.RDMA_ENCRYPTED, instead)
    else:
        result.add(Verdict.OK, "share", target.share)


async def _interfaces(patient: Patient, session: ClientSession) -> None:
    result = patient.result
    try:
        result.interfaces = await query_interfaces(await session.tree_connect("IPC$"))
    except TROUBLE as error:
        refused = isinstance(error, ServerError) and error.status == NtStatus.NOT_SUPPORTED
        text = "the server has no such list" if refused else reason_of(error)
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


def _advise(patient: Patient) -> None:
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
    if worked.port in (SMB_DIRECT_PORT, SMB_PORT):
        windows = (
            "find RDMA by themselves: `Get-NetAdapterRdma` shows the NICs that can,"
            " `Get-SmbMultichannelConnection -IncludeNotSelected` whether this server's connections do"
        )
    else:
        windows = f"not possible: they ask for the usual port, and SMB Direct is served on {worked.port}"
    result.add(Verdict.NOTE, "Windows clients", windows)


def _judge(patient: Patient) -> None:
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
        ways = [
            f"{attempt.moved.way.replace('RDMA', attempt.fabric)} ({amounts(attempt.moved)})"
            for attempt in moved
            if attempt.moved is not None
        ]
        result.verdict = f"RDMA is used: {', '.join(ways)}"

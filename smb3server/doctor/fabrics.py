"""The doctor's attempts on RDMA: every fabric at every address, a channel of the session, and data through it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from smb3server.client.fabrics import ports_of, reason_of
from smb3server.client.protocol import Client, Tree, open_rdma
from smb3server.client.protocol.session import BoundSession
from smb3server.doctor.findings import Verdict
from smb3server.doctor.network import explain_fabric
from smb3server.doctor.patient import TRANSFORMS_WANTED, TROUBLE, Attempt, Patient
from smb3server.doctor.transfer import Moved, Stalled, move
from smb3server.status.report import dialect_name
from smbdirect.errors import ProviderError
from smbdirect.providers.make import make_provider

ATTEMPT_TIMEOUT = 5.0
"""Seconds for one RDMA connection."""
MOVE_TIMEOUT = 60.0
"""Seconds for moving the data, enough for a slow network."""
MAX_EXPLAINED = 2
"""Largest number of addresses that do not answer to look at more closely, for each fabric."""
MAX_ADDRESSES = 8
"""Largest number of RDMA capable addresses to try."""
_MTU_REMEDY = (
    "somewhere on the way large packets are dropped: make the MTU the same on both ends and all switches"
    " (`ip link show`), let ICMP through, and try `ping -M do -s 1472 {address}` (1472 for MTU 1500, 8972 for 9000)"
)


async def _addresses(patient: Patient) -> list[str]:
    """Return the RDMA capable addresses of the server's list, then the host that was named."""
    found = [str(entry.address) for entry in patient.result.interfaces if entry.rdma]
    target = patient.target
    try:
        named = await asyncio.get_running_loop().getaddrinfo(target.host, None, type=socket.SOCK_STREAM)
    except OSError:
        named = []
    own = [str(address[0]) for *_, address in named]
    return list(dict.fromkeys([*(host for host in own if host in found), *found, *own]))[:MAX_ADDRESSES]


async def try_fabrics(patient: Patient) -> None:
    """Try every fabric, and add what was found."""
    result, target = patient.result, patient.target
    addresses = await _addresses(patient)
    silent: list[str] = []
    for fabric in target.fabrics:
        try:
            provider = make_provider(fabric)
        except ProviderError as error:
            result.add(Verdict.NOTE, fabric, f"cannot be tried from here: {error}")
            continue
        ports = ports_of(fabric, target.rdma_port)
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


async def _explain_silence(patient: Patient, fabric: str, ports: tuple[int, ...]) -> list[str]:
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


async def _attempt(patient: Patient, provider: Any, fabric: str, address: str, port: int) -> Attempt:
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
            patient.result.add(Verdict.PROBLEM, f"{fabric} data", reason_of(error))
            patient.give_up(f"moving data through share {target.share} failed: {reason_of(error)}")
        else:
            attempt.text = f"{step}: {reason_of(error)}"
    finally:
        if client is not None and not patient.stalled:
            await client.close()
        elif client is not None:
            client.transport.abort("nothing gets through")
    return attempt


async def _tree_by_rdma(patient: Patient, client: Client) -> Tree | None:
    target, result = patient.target, patient.result
    if not patient.may_log_on or patient.unknown or not target.share:
        return None
    try:
        session = await client.log_on(target.user, target.password, guest=target.guest)
        return await session.tree_connect(target.share)
    except TROUBLE as error:
        result.add(Verdict.PROBLEM, "share", f"{target.share} by RDMA: {reason_of(error)}")
        patient.give_up(f"share {target.share} cannot be used: {reason_of(error)}")
        patient.may_log_on = False
        return None


async def _move(patient: Patient, attempt: Attempt, tree: Tree) -> None:
    moved = attempt.moved = await move(tree)
    patient.moved_by.add(attempt.fabric)
    patient.inline = patient.inline or moved.inline
    subject = f"{attempt.fabric} data"
    if not moved.anything:
        patient.result.add(Verdict.NOTE, subject, f"none moved: {moved.text}")
        return
    said = f"{moved.way}: {amounts(moved)}, {moved.in_messages >> 10} KiB in messages; {moved.text}"
    if moved.by_rdma:
        patient.result.add(Verdict.OK, subject, said)
    else:
        remedy = TRANSFORMS_WANTED if tree.choice.needs is not None else ""
        patient.result.add(Verdict.WARNING, subject, f"{said}; {moved.inline}", remedy)


def amounts(moved: Moved) -> str:
    """Format how much was moved."""
    return f"{moved.written >> 10} KiB written, {moved.read >> 10} KiB read"

"""Attacks by unauthenticated peers."""

from __future__ import annotations

import asyncio
import os
import resource
import struct
import time

from smb3server.client.protocol import open_rdma
from smbdirect.errors import ConnectionLost, ProtocolError
from smbdirect.providers.make import make_provider
from tools.attacks import raw
from tools.attacks.lab import Target, case, password
from tools.attacks.raw import Stranger
from tools.fuzz.pipes import MAPPER, WITNESS, bind, pdu, request
from tools.support.innocent import Innocent, Lost
from tools.support.server_process import listening_ports

_GONE = (OSError, EOFError)
_NEWCOMER = "127.0.0.201"
_GUESSES_PER_SECOND = 40
"""Wrong passwords that may be answered per second, on one connection at a time."""
_SOON = 0.1
"""Least delay in seconds of the next guess after many wrong ones, apart from chance."""
_KERBEROS = bytes.fromhex("06092a864886f712010202")


async def _repeat(target: Target, token: bytes) -> None:
    """Send the token over and over on one unauthenticated connection."""
    end, count = target.until(), 0
    while time.monotonic() < end:
        try:
            stranger = await Stranger.connect(target.port)
            while time.monotonic() < end:
                await stranger.setup(token)
                count += 1
        except _GONE:
            count += 1
            await asyncio.sleep(0.01)
    target.note(f"{count} tokens of {len(token)} bytes")


@case()
async def long_mechanism(target: Target) -> None:
    """Send a SPNEGO token whose only mechanism is an OID of 60,000 bytes, over and over."""
    await _repeat(target, raw.spnego(raw.der(6, b"\x81" * 60000 + b"\x01")))


@case()
async def many_mechanisms(target: Target) -> None:
    """Send a SPNEGO token with 5,900 mechanisms, over and over."""
    await _repeat(target, raw.spnego(_KERBEROS * 5900))


@case()
async def nested_tokens(target: Target) -> None:
    """Send a token of thousands of nested sequences, over and over."""
    nested = b""
    while len(nested) < 60000:
        nested = b"\x30\x84" + len(nested).to_bytes(4, "big") + nested
    await _repeat(target, nested)


async def newcomer(target: Target) -> None:
    """Check that a client from an address that took no part in the attack can log on."""

    def try_it() -> str:
        try:
            client = Innocent(target.port, address=_NEWCOMER, timeout=10)
            client.echo()
            client.close()
        except (OSError, Lost) as error:
            return repr(error)
        return ""

    error = await asyncio.to_thread(try_it)
    if error:
        target.fail(f"a newcomer does not get in: {error}")


def many_descriptors() -> None:
    """Let this process have many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 20000), most))


async def _crowd(target: Target, count: int, addresses: int, first: bytes) -> list[Stranger]:
    """Open many connections that send the same bytes and then nothing."""
    many_descriptors()
    found = []
    for index in range(count):
        try:
            one = await Stranger.connect(target.port, f"127.0.1.{index % addresses + 1}", negotiated=False)
        except OSError:
            continue
        one.send(first)
        found.append(one)
    return found


@case()
async def idle_strangers(target: Target) -> None:
    """Open 4,608 connections from 9 addresses that negotiate and then send nothing: others must still be able to log
    on.
    """
    crowd = await _crowd(target, 4608, 9, raw.negotiate())
    await asyncio.sleep(0.5)
    await newcomer(target)
    for one in crowd:
        one.close()


@case()
async def half_open_iwarp(target: Target) -> None:
    """Open 1,024 iWARP connections that send one byte of the MPA request: an SMB Direct client must still get in."""
    many_descriptors()
    port = target.server.ports["iwarp"]
    crowd = []
    for _ in range(1024):
        try:
            one = await Stranger.connect(port, "127.0.1.1", negotiated=False)
        except OSError:
            continue
        one.send(b"M")
        crowd.append(one)
    await asyncio.sleep(0.3)
    try:
        transport = await open_rdma(make_provider("iwarp"), "127.0.0.1", port, timeout=5)
        transport.abort("it got in")
    except (OSError, TimeoutError, ConnectionLost, ProtocolError) as error:
        target.fail(f"an SMB Direct client does not get in: {error!r}")
    for one in crowd:
        one.close()


@case()
async def unfinished_messages(target: Target) -> None:
    """Open 70 connections that send all but the end of a 64 KiB message: large tokens must still be accepted."""
    crowd = []
    for _ in range(70):
        one = await Stranger.connect(target.port)
        one.send(raw.session_setup(1, os.urandom(64000))[:62000])
        crowd.append(one)
    await asyncio.sleep(0.5)
    try:
        async with asyncio.timeout(5):
            honest = await Stranger.connect(target.port, _NEWCOMER)
            await honest.setup(raw.NTLM_NEGOTIATE + bytes(7900))
            honest.close()
    except (*_GONE, TimeoutError) as error:
        target.fail(f"a logon with a large token is not answered: {error!r}")
    await newcomer(target)
    for one in crowd:
        one.close()


@case(config="guest = false\n")
async def which_accounts_exist(target: Target) -> None:
    """Send well-formed and malformed NTLMv2 responses for existing and other accounts: the answers must be the same."""
    endless = os.urandom(16) + bytes(28) + b"\2\0\xff\xff"
    for kind, response in (("endless AvPairs", endless), ("short", bytes(20)), ("random", os.urandom(64))):
        found: dict[str, int] = {}
        for user in ("carol", "alice", "nobody-there"):
            stranger = await Stranger.connect(target.port, "127.0.0.30")
            challenge = await stranger.setup(raw.NTLM_NEGOTIATE)
            try:
                async with asyncio.timeout(20):
                    answer = await stranger.setup(raw.ntlm_authenticate(user, response), raw.session_of(challenge))
                found[user] = raw.status(answer)
            except _GONE:
                found[user] = -1
            stranger.close()
        if len(set(found.values())) != 1:
            target.fail(f"{kind}: {found} distinguishes existing accounts from others")
        target.note(f"{kind}: " + ", ".join(f"{user} {status:#x}" for user, status in found.items()))


@case()
async def guessing(target: Target) -> None:
    """Guess one account's password on 32 connections of one address; then try the right one on all of them.

    Servers may refuse guesses without checking them, so the answers do not show how many guesses were checked. The time
    until the right password is accepted shows it.
    """
    answered = 0
    end = target.until()

    async def guess() -> None:
        nonlocal answered
        while time.monotonic() < end:
            try:
                stranger = await Stranger.connect(target.port, "127.0.0.31")
                while time.monotonic() < end:
                    async with asyncio.timeout(target.seconds):
                        if await stranger.guess("carol") == raw.LOGON_FAILURE:
                            answered += 1
            except (*_GONE, TimeoutError, ValueError):
                await asyncio.sleep(0.05)

    await asyncio.gather(*(guess() for _ in range(32)))
    target.note(f"{answered / target.seconds:.0f} guesses a second were answered")
    begun = time.monotonic()
    found = await asyncio.gather(*(asyncio.to_thread(_right_password, target.port) for _ in range(8)))
    soonest = min((moment for moment in found if moment), default=0.0)
    if soonest and soonest - begun < _SOON:
        target.fail(f"after {answered} wrong passwords the next is looked at within {soonest - begun:.3f} s")
    target.note(f"the right password was found after {soonest - begun:.1f} s" if soonest else "it was not found")
    await newcomer(target)


def _right_password(port: int) -> float:
    """Try the right password from the guesser's address. Return the time at which it was accepted, or 0."""
    try:
        Innocent(port, "carol", password("carol"), "127.0.0.31", timeout=5).close()
    except (OSError, Lost):
        return 0.0
    return time.monotonic()


@case()
async def guessing_by_rpc(target: Target) -> None:
    """Guess one account's password through binds of the Witness service."""
    port = target.server.ports["witness"]
    answered, end = 0, target.until()
    body = bind(WITNESS)
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.32", 0))
            async with asyncio.timeout(target.seconds):
                writer.write(pdu(11, body, auth=raw.NTLM_NEGOTIATE))
                challenge = await reader.read(4096)
                writer.write(pdu(14, body, auth=raw.wrong_password("carol", challenge)))
                if (await reader.read(4096))[2:3] in {b"\x0d", b"\x03"}:
                    answered += 1
            writer.close()
        except (*_GONE, TimeoutError, ValueError, struct.error):
            await asyncio.sleep(0.02)
    rate = answered / target.seconds
    target.note(f"{rate:.0f} guesses a second were answered")
    if rate > _GUESSES_PER_SECOND:
        target.fail(f"{rate:.0f} wrong passwords a second are answered")


@case()
async def null_towers(target: Target) -> None:
    """Send ept_map calls without a tower: the answers must be faults, with few log lines."""
    for port in sorted(listening_ports(target.server.pid) - set(target.server.ports.values())):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(pdu(11, bind(MAPPER)))
        await reader.read(4096)
        for _ in range(200):
            writer.write(pdu(0, request(3, bytes(28) + struct.pack("<I", 4))))
            if not await reader.read(4096):
                break
        writer.close()


@case()
async def forged_log_lines(target: Target) -> None:
    """Send names with line ends and escape sequences: they must not create log lines, nor reach a terminal."""
    before = target.server.log_size()
    name = "x\r\n2099-01-01 00:00:00,000 CRITICAL root: forged \x1b[31m"
    for index in range(60):
        stranger = await Stranger.connect(target.port, "127.0.0.33")
        try:
            async with asyncio.timeout(2):
                challenge = await stranger.setup(raw.NTLM_NEGOTIATE)
                token = raw.ntlm_authenticate(f"{name}{index}", os.urandom(64))
                await stranger.setup(token, raw.session_of(challenge))
        except (*_GONE, TimeoutError):
            continue
        finally:
            stranger.close()
    text = target.server.log_text(before)
    if "\x1b" in text or any(line.startswith("2099-") for line in text.splitlines()):
        target.fail("a name made a line of the log, or an escape sequence in it")

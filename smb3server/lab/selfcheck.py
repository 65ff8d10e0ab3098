"""Check that the verbs provider keeps its contract on this machine's NICs: ``smb3server selfcheck``.

Without addresses, every interface with an RDMA device that is up is checked. The device talks to itself, which most
devices support: the check shows that library, driver and firmware carry messages and data unharmed. With a source tree
its contract suite runs, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smb3server.lab.content import content_of, other_content
from smb3server.net.host import RdmaDevice, rdma_devices
from smb3server.net.interfaces import read_interfaces
from smbdirect.errors import ConnectionLost, ProtocolError, ProviderError
from smbdirect.message_transport import InboundMessage, MessageTransport
from smbdirect.providers.base import ConnectionRequest, Endpoint, Provider
from smbdirect.providers.verbs.device import why_unavailable
from smbdirect.providers.verbs.provider import VerbsProvider
from smbdirect.transport.listen import connect, listen

SUITES = (
    "tests/smbdirect/contract/test_contract.py",
    "tests/smbdirect/contract/test_transfers.py",
    "tests/smbdirect/contract/test_smb_direct.py",
    "tests/smb3server/status/test_rdma_reasons.py",
)
TEST_SECONDS = 60
SUITE_SECONDS = 900
MESSAGE_LENGTHS = (1, 4096, 130_000)
"""Bytes of the messages sent; the longest takes several SMB Direct packets."""
AMOUNT = 1 << 20
"""Bytes moved by RDMA in each direction."""
TIMEOUT = 10.0
"""Seconds for each check."""


class _Side:
    """One end of the connection."""

    def __init__(self, transport: MessageTransport) -> None:
        self.transport = transport
        self.messages: asyncio.Queue[bytes | BaseException] = asyncio.Queue()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport.start(self._take, self._ended)
        transport.trust(AMOUNT)

    def _take(self, message: InboundMessage) -> None:
        self.messages.put_nowait(bytes(message.view))
        message.release()

    def _ended(self, error: BaseException | None) -> None:
        self.messages.put_nowait(error or ConnectionLost("closed"))
        self.closed.set_result(None)

    async def next(self) -> bytes:
        """Wait for a message and return it. Raises the error that ended the connection."""
        found = await self.messages.get()
        if isinstance(found, BaseException):
            raise found
        return found


async def _messages(sender: _Side, receiver: _Side) -> str:
    for length in MESSAGE_LENGTHS:
        sent = content_of(length)
        sender.transport.send([sent])
        if await receiver.next() != sent:
            return f"a message of {length} bytes was changed on the way"
    return ""


async def _rdma_write(writer: _Side, owner: _Side) -> str:
    """Let the owner expose memory, and check that a message sent after an RDMA Write arrives once the data is there."""
    here, there = writer.transport.rdma, owner.transport.rdma
    assert here is not None and there is not None
    memory = memoryview(bytearray(AMOUNT))
    exposed = there.register(memory, writable=True)
    buffer = writer.transport.acquire(AMOUNT)
    done = asyncio.get_running_loop().create_future()
    try:
        buffer.view[:AMOUNT] = content_of(AMOUNT)
        here.write_to_peer(exposed.descriptors, [buffer.view[:AMOUNT]], done.set_result)
        writer.transport.send([b"written"])
        await owner.next()
        arrived = memory == buffer.view[:AMOUNT]
        error = await done
    finally:
        exposed.deregister()
        buffer.release()
    return str(error) if error else "" if arrived else "the data that arrived is not the data written"


async def _rdma_read(reader: _Side, owner: _Side) -> str:
    here, there = reader.transport.rdma, owner.transport.rdma
    assert here is not None and there is not None
    memory = memoryview(bytearray(other_content(AMOUNT)))
    exposed = there.register(memory, readable=True)
    buffer = reader.transport.acquire(AMOUNT)
    done = asyncio.get_running_loop().create_future()
    try:
        here.read_from_peer(exposed.descriptors, [buffer.view[:AMOUNT]], done.set_result)
        error = await done
        arrived = memory == buffer.view[:AMOUNT]
    finally:
        exposed.deregister()
        buffer.release()
    return str(error) if error else "" if arrived else "the data read is not the data exposed"


CHECKS: dict[str, Callable[[_Side, _Side], Awaitable[str]]] = {
    "messages to the server": _messages,
    "messages to the client": lambda client, server: _messages(server, client),
    "RDMA Write": lambda client, server: _rdma_write(server, client),
    "RDMA Read": lambda client, server: _rdma_read(server, client),
}
"""The checks by name. Each returns what is wrong, or an empty string."""


async def check_transfers(provider: Provider, address: str) -> dict[str, str]:
    """Connect ``address`` to itself by SMB Direct and return the verdict of each check: "ok" or "FAILED: why".

    Raises ``OSError``, ``ProviderError``, ``ProtocolError`` or ``ConnectionLost`` if there is no connection.
    """
    accepted: asyncio.Future[MessageTransport] = asyncio.get_running_loop().create_future()
    listener = await listen(provider, address, 0, accepted.set_result)
    sides: list[_Side] = []
    verdicts: dict[str, str] = {}
    try:
        client = await connect(provider, address, listener.address[1])
        async with asyncio.timeout(TIMEOUT):
            sides += [_Side(client), _Side(await accepted)]
        for name, check in CHECKS.items():
            try:
                async with asyncio.timeout(TIMEOUT):
                    wrong = await check(*sides)
            except (TimeoutError, ConnectionLost, ProtocolError, ProviderError) as error:
                wrong = str(error) or f"nothing arrives in {TIMEOUT:g} s"
            verdicts[name] = f"FAILED: {wrong}" if wrong else "ok"
    finally:
        for side in sides:
            side.transport.abort("the check is over")
        await asyncio.gather(*(side.closed for side in sides))
        await listener.close()
    return verdicts


@dataclass(slots=True)
class Check:
    """The result of checking one address."""

    address: str
    device: str
    capabilities: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    """"ok", "skipped: why" or "FAILED: why", by test."""
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything passed."""
        return (
            not self.error and bool(self.verdicts) and not any(v.startswith("FAILED") for v in self.verdicts.values())
        )


def addresses(devices: Sequence[RdmaDevice]) -> dict[str, RdmaDevice]:
    """Return the addresses of interfaces with a device that is up, and the devices."""
    found: dict[str, RdmaDevice] = {}
    for entry in read_interfaces():
        for device in devices:
            if device.state.active and entry.name in device.state.netdevs and not entry.loopback:
                found.setdefault(str(entry.address), device)
    return found


async def capabilities(address: str) -> dict[str, Any]:
    """Return the capabilities of a connection from the address to itself.

    Raises ``OSError``, ``ProviderError`` or ``ConnectionLost``.
    """
    provider = VerbsProvider()
    accepting: list[asyncio.Task[None]] = []
    sides: list[Endpoint] = []

    def on_request(request: ConnectionRequest) -> None:
        sides.append(request.prepare())
        accepting.append(asyncio.get_running_loop().create_task(request.accept()))

    listener = await provider.listen(address, 0, on_request)
    try:
        endpoint = await provider.connect(address, listener.address[1], sides.append)
        await asyncio.gather(*accepting)
        return dataclasses.asdict(endpoint.capabilities)
    finally:
        closed = [asyncio.get_running_loop().create_future() for _ in sides]
        for side, future in zip(sides, closed, strict=True):
            side.on_closed = lambda reason, future=future: future.set_result(reason)  # type: ignore[misc]
            side.abort()
        await asyncio.gather(*closed)
        await listener.close()


def verdicts(document: str) -> dict[str, str]:
    """Return the verdict of each test in pytest's JUnit XML."""
    found: dict[str, str] = {}
    for case in ET.fromstring(document).iter("testcase"):
        name = case.get("name", "?")
        verdict = "ok"
        for child in case:
            message = (child.get("message") or "").splitlines() or [""]
            if child.tag == "skipped":
                verdict = f"skipped: {message[0]}"
            elif child.tag in ("failure", "error"):
                verdict = f"FAILED: {message[0]}"
        found[name] = verdict
    return found


def run_suite(source: Path, address: str, driver: str) -> dict[str, str]:
    """Run the contract suite of the tree ``source`` over the device that has ``address``.

    Known gaps of ``driver`` are skipped. Raises ``RuntimeError`` if the suite does not run at all.
    """
    with tempfile.TemporaryDirectory(prefix="verbs-selfcheck-") as folder:
        result = Path(folder) / "result.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
        command += [f"--junit-xml={result}", "-k", "verbs", *SUITES]
        environment = os.environ | {"VERBS_HOST": address, "VERBS_DEVICE": driver, "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(
            command,
            cwd=source,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SUITE_SECONDS,
        )
        if not result.exists():
            raise RuntimeError(f"the suite did not run: {(run.stdout + run.stderr).strip()[-500:]}")
        return verdicts(result.read_text())


def check(address: str, device: str, driver: str, source: Path | None) -> Check:
    """Check one address; without a ``source`` tree, only its transfers."""
    found = Check(address, device)
    try:
        found.capabilities = asyncio.run(capabilities(address))
        found.verdicts = asyncio.run(check_transfers(VerbsProvider(), address))
        if source is not None:
            found.verdicts |= run_suite(source, address, driver)
    except (OSError, ProviderError, ConnectionLost, ProtocolError, RuntimeError, subprocess.TimeoutExpired) as error:
        found.error = str(error)
    return found


def show(found: Check) -> None:
    """Print the result of one address."""
    print(f"\n{found.address} ({found.device})")
    for name, value in found.capabilities.items():
        print(f"    {name:24} {value}")
    for name, verdict in found.verdicts.items():
        if verdict != "ok":
            print(f"  {name}: {verdict}")
    counts = [sum(v.startswith(kind) for v in found.verdicts.values()) for kind in ("ok", "skipped", "FAILED")]
    print(
        f"  {counts[0]} passed, {counts[1]} skipped, {counts[2]} failed" + (f"; {found.error}" if found.error else "")
    )


def run(given: Sequence[str], as_json: bool, source: Path | None) -> int:
    """Check the addresses, or all of this machine if none is given; print the results and return the exit status."""
    devices = rdma_devices()
    if not as_json:
        for device in devices:
            state = "up" if device.state.active else "down"
            where = ", ".join(device.state.netdevs)
            print(
                f"{device.name} port {device.state.port}: {device.fabric}, driver {device.driver}, {state}, on {where}"
            )
    reason = why_unavailable()
    known = addresses(devices) if reason is None else {}
    wanted = given or list(known)
    if reason is not None or not wanted:
        print(reason or "no interface with an RDMA device that is up has an address", file=sys.stderr)
        return 2
    results = []
    for address in wanted:
        at = known.get(address)
        results.append(check(address, at.name if at else "?", at.driver if at else "", source))
    if as_json:
        print(json.dumps([dataclasses.asdict(found) | {"passed": found.passed} for found in results], indent=2))
    else:
        for found in results:
            show(found)
        print("\nverdict:", "the verbs provider keeps its contract" if all(r.passed for r in results) else "FAILED")
    return 0 if all(found.passed for found in results) else 1

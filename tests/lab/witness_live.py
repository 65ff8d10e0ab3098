"""Witness clients against a cluster that lives: Samba's bindings as processes in a namespace of their own, what they
were told and when, and tshark as judge of all that went over the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from smb3server.net.store_url import parse_url
from smb3server.persistence.etcd import EtcdStore
from tools.cluster.lab import CLIENT, ClusterLab
from tools.cluster.node import PASSWORD, USER

SYSTEM_PYTHON = "/usr/bin/python3"

WATCH = f"""
import ipaddress, json, sys, time
from samba import credentials, param, WERRORError, NTSTATUSError
from samba.dcerpc import witness as w
options = json.loads(sys.argv[1])
lp = param.LoadParm()
lp.load_default()
c = credentials.Credentials()
c.guess(lp)
c.set_username({USER!r}); c.set_password({PASSWORD!r}); c.set_domain("")
c.set_kerberos_state(credentials.DONT_USE_KERBEROS)
p = w.witness(f"ncacn_ip_tcp:{{options['host']}}[{{options['protection']}}]", lp, c)
def say(**what):
    print(json.dumps(dict(what, at=time.clock_gettime(time.CLOCK_MONOTONIC))), flush=True)
names, ip = options["name"], options["address"]
if options["version"] == 1:
    handle = p.Register(w.WITNESS_V1, names, ip, options["client"])
else:
    flags = w.WITNESS_REGISTER_IP_NOTIFICATION if options["ip"] else 0
    handle = p.RegisterEx(w.WITNESS_V2, names, options["share"], ip, options["client"], flags, options["keepalive"])
found = [[i.group_name, i.state, i.ipv4, i.flags] for i in p.GetInterfaceList().interfaces]
say(registered=found)
while True:
    try:
        r = p.AsyncNotify(handle)
    except (WERRORError, NTSTATUSError) as error:
        say(error=error.args[0])
        if error.args[0] == 1460:
            continue
        break
    m = r.messages[0]
    if r.type == w.WITNESS_NOTIFY_RESOURCE_CHANGE:
        say(kind=r.type, name=m.name, state=m.type, count=r.num)
    else:
        found = [[a.flags, str(ipaddress.ip_address(a.ipv4 if a.flags & 1 else a.ipv6))] for a in m.addr]
        say(kind=r.type, addresses=found, count=r.num)
"""

RESOURCE_CHANGE, CLIENT_MOVE, SHARE_MOVE, IP_CHANGE = 1, 2, 3, 4
UNAVAILABLE, AVAILABLE = 0xFF, 1
TIMED_OUT = 1460
IPV4, IPV6, ONLINE, OFFLINE = 0x01, 0x02, 0x08, 0x10


def samba_available() -> bool:
    if not Path(SYSTEM_PYTHON).exists():
        return False
    command = [SYSTEM_PYTHON, "-c", "import samba.dcerpc.witness"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Told(NamedTuple):
    """A notification. ``what`` is (name, state) or addresses with their flags."""

    kind: int
    what: Any
    at: float
    """time.monotonic()."""


class SambaWatcher:
    """A foreign client that is registered with a node's Witness and always has WitnessrAsyncNotify outstanding."""

    def __init__(
        self,
        cluster: ClusterLab,
        witness: str,
        name: str,
        address: str,
        *,
        version: int = 2,
        share: str | None = None,
        ip: bool = False,
        client: str = "SAMBA",
        protection: str = "sign",
        keepalive: int = 50,
    ) -> None:
        options = {"host": witness, "name": name, "address": address, "version": version, "share": share, "ip": ip,
                   "client": client, "protection": protection, "keepalive": keepalive}  # fmt: skip
        self.process = subprocess.Popen(
            [*cluster.network.prefix(CLIENT), SYSTEM_PYTHON, "-c", WATCH, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.interfaces: list[list[Any]] = self._next(20)["registered"]
        """(node, state, IPv4 address, flags) of each."""

    # Clients that seal use NTLM as such: tshark 4.0 does not decipher what follows SPNEGO with its mechListMIC.

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))

    def _next(self, timeout: float) -> dict[str, Any]:
        try:
            return self._lines.get(timeout=timeout)
        except queue.Empty:
            complaint = ""
            if self.process.poll() is not None and self.process.stderr is not None:
                complaint = self.process.stderr.read()
            raise AssertionError(f"nothing was told within {timeout:g} s {complaint}") from None

    def next(self, timeout: float = 15) -> Told:
        """Raises ``AssertionError`` if nothing comes."""
        found = self._next(timeout)
        assert "error" not in found, found
        assert found["count"] == 1
        if found["kind"] == RESOURCE_CHANGE:
            return Told(RESOURCE_CHANGE, (found["name"], found["state"]), found["at"])
        return Told(found["kind"], [tuple(entry) for entry in found["addresses"]], found["at"])

    def error(self, timeout: float = 10) -> int:
        """The next answer is one without a notification."""
        code: int = self._next(timeout)["error"]
        return code

    def silent(self) -> bool:
        return self._lines.empty()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class KeyWatch:
    """When etcd said that keys came and went."""

    def __init__(self, cluster: ClusterLab, prefix: str) -> None:
        self._seen: list[tuple[str, bool, float]] = []
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._changed = threading.Condition()

        async def body() -> None:
            store = EtcdStore(parse_url(cluster.etcd.url))
            version = await store.version()
            self._ready.set()

            async def watch() -> None:
                async for change in store.watch(prefix, version):
                    with self._changed:
                        self._seen.append((change.key, change.value is not None, time.monotonic()))
                        self._changed.notify_all()

            task = asyncio.ensure_future(watch())
            while not self._stop.is_set():
                await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.close()

        self._thread = threading.Thread(target=lambda: cluster.network.inside(CLIENT, body))
        self._thread.start()
        assert self._ready.wait(10)

    def when(self, key: str, there: bool, after: float = 0.0, timeout: float = 15) -> float:
        """time.monotonic() of the first such change that is later than ``after``."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for name, put, at in self._seen:
                    if name.endswith(key) and put == there and at > after:
                        return at
                assert self._changed.wait(deadline - time.monotonic()), (key, there, self._seen)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def recorded(cluster: ClusterLab, capture: Path) -> Iterator[None]:
    """What the client's interface sees."""
    command = [*cluster.network.prefix(CLIENT), "tcpdump", "-i", "eth0", "-s", "0", "-U", "--immediate-mode"]
    with subprocess.Popen([*command, "-w", str(capture), "tcp"], stderr=subprocess.DEVNULL) as dump:
        try:
            deadline = time.monotonic() + 10
            while not capture.exists() or capture.stat().st_size < 24:
                assert time.monotonic() < deadline and dump.poll() is None, "tcpdump does not record"
                time.sleep(0.02)
            yield
            time.sleep(0.2)
        finally:
            dump.terminate()


def tshark(capture: Path, ports: Sequence[int], *arguments: str) -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(capture), "--disable-protocol", "artemis"]
    command += ["-o", f"ntlmssp.nt_password:{PASSWORD}"]
    for port in ports:
        command += ["-d", f"tcp.port=={port},dcerpc"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


def judged(capture: Path, ports: Sequence[int]) -> list[int]:
    """The types of all notifications as tshark reads them; it must have nothing to complain of in what servers sent."""
    ours = " || ".join(f"tcp.srcport == {port}" for port in ports)
    # tshark 4.0 calls a sealed stub of no bytes, as of GetInterfaceList, malformed.
    empty = "(dcerpc.pkt_type == 0 && dcerpc.opnum == 0 && dcerpc.cn_alloc_hint == 0)"
    wrong = f"(_ws.malformed || _ws.expert) && dcerpc && ({ours}) && !{empty}"
    faults = tshark(capture, ports, "-Y", wrong, "-T", "fields",
                    "-e", "_ws.expert.message")  # fmt: skip
    messages = {message for fault in faults for message in fault[0].split(",")}
    # Remarks: on TCP itself, and on what was deciphered with the password.
    remarks = ("TCP ", "Connection ", "NTLM")
    complaints = [message for message in messages if not message.startswith(remarks)]
    assert not complaints, (complaints, capture)
    kinds = tshark(capture, ports, "-Y", "witness.witness_notifyResponse.type", "-T", "fields", "-e",
                   "witness.witness_notifyResponse.type")  # fmt: skip
    return [int(kind) for (kind,) in kinds]

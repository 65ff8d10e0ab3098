"""tshark as judge of the endpoint's bytes: signed calls in the clear, sealed ones deciphered with the password."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.witness import ADDRESS_A, ADDRESS_B, NET_NAME, PASSWORD, Running
from witness.client import WitnessClientError, find_port
from witness.ndr import MessageType

pytestmark = [
    pytest.mark.interop,
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("tcpdump"), reason="tcpdump is not installed"),
    pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="capturing needs root"),
]

MARKER = b"the capture may end here"


def session(running: Running, privacy: bool) -> None:
    """Every call, every notification, and errors."""
    assert running.service.mapper_port is not None
    find_port("127.0.0.1", running.service.mapper_port, 10)
    with running.client(privacy=privacy) as client:
        client.interfaces()
        first = client.register(NET_NAME, ADDRESS_A, "CLIENT")
        with pytest.raises(WitnessClientError):
            client.register("OTHER", ADDRESS_A, "CLIENT")
        client.unregister(first)
        second = client.register_extended(NET_NAME, ADDRESS_A, "CLIENT", "data", ip_notifications=True, keepalive=1)
        target = running.cluster.nodes[1].addresses
        for function, arguments in (
            (running.cluster.node_changed, ("NODE-A", False)),
            (running.cluster.move_client, ("CLIENT", target)),
            (running.cluster.move_share, (NET_NAME, "data", target)),
            (running.cluster.ip_change, (NET_NAME, target)),
        ):
            running.call(function, *arguments)
        for _ in range(4):
            assert client.wait(second, 10) is not None
        assert client.wait(second, 10) is None
        client.unregister_extended(second)


def record(path: Path, running: Running, privacy: bool) -> None:
    """A complete capture: it ends with a message sent afterwards."""
    ports = f"port {running.service.port} or port {running.service.mapper_port}"
    with socket.create_server(("127.0.0.1", 0)) as last:
        expression = f"tcp and ({ports} or port {last.getsockname()[1]})"
        dump = subprocess.Popen(
            ["tcpdump", "-i", "lo", "-s", "0", "-U", "-w", path, expression], stderr=subprocess.DEVNULL
        )

        def wait_for(condition: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 20
            while not condition():
                assert time.monotonic() < deadline and dump.poll() is None, "tcpdump does not record"
                threading.Event().wait(0.02)

        try:
            wait_for(lambda: path.exists() and path.stat().st_size >= 24)
            session(running, privacy)
            with socket.create_connection(last.getsockname()) as sock:
                sock.sendall(MARKER)
            wait_for(lambda: MARKER in path.read_bytes())
        finally:
            dump.terminate()
            dump.wait(10)


def tshark(capture: Path, running: Running, *arguments: str) -> list[list[str]]:
    command = ["tshark", "-n", "-r", str(capture), "--disable-protocol", "artemis"]
    command += ["-o", f"ntlmssp.nt_password:{PASSWORD}"]
    for port in (running.service.port, running.service.mapper_port):
        command += ["-d", f"tcp.port=={port},dcerpc"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return [line.split("\t") for line in done.stdout.splitlines()]


@pytest.mark.parametrize("privacy", [False, True])
def test_tshark_finds_nothing_wrong(running: Running, privacy: bool, tmp_path: Path) -> None:
    capture = tmp_path / "witness.pcap"
    record(capture, running, privacy)
    # tshark 4.0 calls a sealed stub of no bytes, as of GetInterfaceList, malformed.
    empty = "(dcerpc.pkt_type == 0 && dcerpc.opnum == 0 && dcerpc.cn_alloc_hint == 0)"
    faults = tshark(capture, running, "-Y", f"(_ws.malformed || _ws.expert) && dcerpc && !{empty}", "-T", "fields",
                    "-e", "_ws.expert.message")  # fmt: skip
    messages = {message for fault in faults for message in fault[0].split(",")}
    # Remarks: on TCP itself, and on what was deciphered with the password.
    remarks = ("TCP ", "Connection ", "NTLM")
    assert {message for message in messages if not message.startswith(remarks)} == set()
    fields = ["-T", "fields", "-e", "witness.opnum", "-e", "dcerpc.pkt_type"]
    calls = tshark(capture, running, "-Y", "witness", *fields)
    requests = [opnum for opnum, kind in calls if kind == "0"]
    responses = [opnum for opnum, kind in calls if kind == "2"]
    assert responses == ["0", "1", "1", "2", "4", "3", "3", "3", "3", "3", "5"]
    assert requests == responses[1 if privacy else 0 :]
    kinds = tshark(capture, running, "-Y", "witness.witness_notifyResponse.type", "-T", "fields", "-e",
                   "witness.witness_notifyResponse.type")  # fmt: skip
    assert [int(kind) for (kind,) in kinds] == list(MessageType)
    addresses = tshark(capture, running, "-Y", "witness.witness_interfaceInfo.ipv4", "-T", "fields", "-e",
                       "witness.witness_interfaceInfo.ipv4")  # fmt: skip
    assert addresses == [[f"{ADDRESS_A},{ADDRESS_B}"]]
    assert len(tshark(capture, running, "-Y", "epm.opnum == 3")) == 2

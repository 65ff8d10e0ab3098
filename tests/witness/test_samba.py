"""Samba's own Python bindings as a foreign client, for every call, and as the judge of our NDR."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.witness import ADDRESS_A, ADDRESS_B, ADDRESS_B6, NET_NAME, PASSWORD, USER, Running
from witness import ndr

SYSTEM_PYTHON = "/usr/bin/python3"


def _available() -> bool:
    if not Path(SYSTEM_PYTHON).exists():
        return False
    command = [SYSTEM_PYTHON, "-c", "import samba.dcerpc.witness"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not _available(), reason="Samba's Python bindings are not installed"),
]

PROLOGUE = f"""
import json, sys
from samba import credentials, param, WERRORError, NTSTATUSError
from samba.dcerpc import witness as w
lp = param.LoadParm()
lp.load_default()
def connect(port, options):
    c = credentials.Credentials()
    c.guess(lp)
    c.set_username({USER!r}); c.set_password({PASSWORD!r}); c.set_domain("")
    c.set_kerberos_state(credentials.DONT_USE_KERBEROS)
    return w.witness(f"ncacn_ip_tcp:127.0.0.1[{{port}},{{options}}]", lp, c)
def status(function, *arguments):
    try:
        function(*arguments)
    except (WERRORError, NTSTATUSError) as error:
        return error.args[0]
    return 0
"""


def samba(body: str, *arguments: str) -> Any:
    """What the script prints, as JSON."""
    command = [SYSTEM_PYTHON, "-c", PROLOGUE + body, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


EVERY_CALL = """
p = connect(sys.argv[1], sys.argv[2])
found = [(i.group_name, i.version, i.state, i.ipv4, i.ipv6, i.flags) for i in p.GetInterfaceList().interfaces]
first = p.Register(w.WITNESS_V1, "FILES", "10.9.0.1", "ME")
p.UnRegister(p.RegisterEx(w.WITNESS_V2, "FILES", "none", "10.9.9.9", "ME", 0, 1))
second = p.RegisterEx(w.WITNESS_V2, "FILES", "data", "10.9.0.1", "ME", w.WITNESS_REGISTER_IP_NOTIFICATION, 1)
timeout = status(p.AsyncNotify, second)
bad = [
    status(p.Register, w.WITNESS_V2, "FILES", "10.9.0.1", "ME"),
    status(p.Register, w.WITNESS_V1, None, "10.9.0.1", "ME"),
    status(p.Register, w.WITNESS_V1, "FILES", None, "ME"),
    status(p.Register, w.WITNESS_V1, "FILES", "10.9.0.1", None),
    status(p.Register, w.WITNESS_V1, "FILES", "10.9.9", "ME"),
    status(p.RegisterEx, w.WITNESS_V1, "FILES", None, "10.9.0.1", "ME", 0, 1),
    status(p.RegisterEx, w.WITNESS_V2, "FILES", None, "10.9.0.1", "ME", 8, 1),
]
p.UnRegister(first)
again = status(p.UnRegister, first), status(p.AsyncNotify, first)
p.UnRegister(second)
print(json.dumps([found, timeout, bad, again]))
"""


@pytest.mark.parametrize("options", ["sign", "seal", "sign,spnego", "seal,spnego", "sign,ntlm", "seal,ntlm", "packet"])
def test_every_call(running: Running, options: str) -> None:
    found, timeout, bad, again = samba(EVERY_CALL, str(running.service.port), options)
    assert found == [
        ["NODE-A", ndr.V2, 1, ADDRESS_A, "0000:0000:0000:0000:0000:0000:0000:0000", 1],
        ["NODE-B", ndr.V2, 1, ADDRESS_B, "fd00:0000:0000:0000:0000:0000:0000:0002", 7],
    ]
    assert timeout == ndr.Win32.TIMEOUT
    parameter, revision = ndr.Win32.INVALID_PARAMETER, ndr.Win32.REVISION_MISMATCH
    assert bad == [revision, parameter, parameter, parameter, parameter, revision, parameter]
    assert again == [parameter, ndr.Win32.NOT_FOUND]


NOTIFICATIONS = """
p = connect(sys.argv[1], "seal")
handle = p.RegisterEx(w.WITNESS_V2, "FILES", "data", "10.9.0.1", "ME", w.WITNESS_REGISTER_IP_NOTIFICATION, 30)
found = []
for _ in range(4):
    r = p.AsyncNotify(handle)
    m = r.messages[0]
    if r.type == w.WITNESS_NOTIFY_RESOURCE_CHANGE:
        found.append([r.type, r.num, m.type, m.name])
    else:
        found.append([r.type, r.num, [[a.flags, a.ipv4, a.ipv6] for a in m.addr]])
print(json.dumps(found))
"""


def test_every_notification(running: Running) -> None:
    process = subprocess.Popen(
        [SYSTEM_PYTHON, "-c", PROLOGUE + NOTIFICATIONS, str(running.service.port)], stdout=subprocess.PIPE, text=True
    )
    with process:
        running.wait_for(lambda: any(entry.waiters for entry in running.service.registrations))
        target = [ipaddress.ip_address(ADDRESS_B), ipaddress.ip_address(ADDRESS_B6)]
        running.call(running.cluster.node_changed, "node-a", False)
        running.call(running.cluster.move_client, "ME", target)
        running.call(running.cluster.move_share, NET_NAME, "data", target[:1])
        running.call(running.cluster.ip_change, NET_NAME, target[:1], [ipaddress.ip_address(ADDRESS_A)])
        output, _ = process.communicate(timeout=30)
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    both = [[9, ADDRESS_B, zero], [10, "0.0.0.0", "fd00:0000:0000:0000:0000:0000:0000:0002"]]
    assert json.loads(output) == [
        [1, 1, 0xFF, NET_NAME],
        [2, 1, both],
        [3, 1, both[:1]],
        [4, 1, [both[0], [0x11, ADDRESS_A, zero]]],
    ]


def test_connect_level_is_not_enough(running: Running) -> None:
    refused = samba(
        "print(json.dumps(status(connect(sys.argv[1], 'connect').GetInterfaceList)))", str(running.service.port)
    )
    assert refused == 0xC0000022


UNPACK = """
from samba.ndr import ndr_unpack_in, ndr_pack_in, ndr_unpack_out, ndr_pack_out
out = []
for name, side, text in json.loads(sys.argv[1]):
    raw = bytes.fromhex(text)
    value = getattr(w, name)()
    unpack, pack = (ndr_unpack_in, ndr_pack_in) if side == "in" else (ndr_unpack_out, ndr_pack_out)
    unpack(value, raw)
    out.append(pack(value).hex())
print(json.dumps(out))
"""


def _requests() -> list[tuple[str, Any]]:
    register = ndr.Register()
    register["Version"] = ndr.V1
    register["NetName"] = "Fïles\0"
    register["IpAddress"] = "10.9.0.1\0"
    register["ClientComputerName"] = ndr.NULL
    extended = ndr.RegisterEx()
    extended["Version"] = ndr.V2
    extended["NetName"] = "FILES\0"
    extended["ShareName"] = ndr.NULL
    extended["IpAddress"] = "fd00::2\0"
    extended["ClientComputerName"] = "C\0"
    extended["Flags"] = 1
    extended["KeepAliveTimeout"] = 120
    unregister = ndr.UnRegister()
    unregister["pContext"] = bytes(4) + bytes(range(16))
    return [("Register", register), ("RegisterEx", extended), ("UnRegister", unregister)]


def test_ndr_is_read_by_samba_and_packs_to_the_same_length() -> None:
    info = ndr.InterfaceInfo("N" * 259, ndr.V2, 0xFF, ipaddress.IPv4Address("10.1.2.3"), None, True)
    moved = ndr.pack_address_list([ndr.AddressInfo(ipaddress.ip_address(ADDRESS_B6), False)])
    cases: list[tuple[str, str, bytes]] = [(name, "in", bytes(call.getData())) for name, call in _requests()]
    cases += [
        ("GetInterfaceList", "out", bytes(ndr.interface_list_response([info, info]).getData())),
        ("GetInterfaceList", "out", bytes(ndr.interface_list_response([]).getData())),
        ("AsyncNotify", "out", ndr.notification_stub(ndr.MessageType.CLIENT_MOVE, moved, 1)),
        (
            "AsyncNotify",
            "out",
            ndr.notification_stub(ndr.MessageType.RESOURCE_CHANGE, ndr.pack_resource_change("F", 1), 1),
        ),
    ]
    packed = samba(UNPACK, json.dumps([(name, side, raw.hex()) for name, side, raw in cases]))
    for (name, _, ours), theirs in zip(cases, packed, strict=True):
        assert len(ours) == len(bytes.fromhex(theirs)), name
        different = [at for at in range(len(ours)) if ours[at] != bytes.fromhex(theirs)[at]]
        # Referent identifiers are the only values that either side may choose.
        assert len({at // 4 for at in different}) <= 5, (name, different)

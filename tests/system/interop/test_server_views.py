"""What administration programs of others show: sessions by what carries them, disks, flags of shares, statistics."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest

from smb3server.client.protocol import Client, open_rdma, open_tcp
from smb3server.client.protocol.tree import READ_WRITE
from smb3server.service import Service, Share, User
from smb3server.virtual_disks import making
from smb3server.wire import create_contexts, svhdx
from smb3server.wire.create import CreateDisposition, CreateOptions
from smb3server.wire.svhdx import Originator
from smbdirect.providers.make import make_provider
from tests.lab.command import serve, stop
from tests.lab.disks import SIZE, Folder
from tools.support import own_user

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import srvs, transport
    from impacket.dcerpc.v5.dtypes import NULL

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).resolve().parents[3]
ABE, LEVEL_II, CA, ENCRYPT, COMPRESS = 0x800, 0x1000, 0x4000, 0x8000, 0x100000
MODES = {"manual": 0, "documents": 0x10, "programs": 0x20, "none": 0x30}


def administrator(port: int) -> Any:
    endpoint = transport.SMBTransport("127.0.0.1", port, r"\srvsvc", "u", "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(srvs.MSRPC_UUID_SRVS)
    return endpoint


def sessions(port: int) -> dict[str, str]:
    """Return what carries each user's session."""
    endpoint = administrator(port)
    found = srvs.hNetrSessionEnum(endpoint, NULL, NULL, 502)["InfoStruct"]["SessionInfo"]["Level502"]["Buffer"]
    endpoint.disconnect()
    return {entry["sesi502_username"].rstrip("\0"): entry["sesi502_transport"].rstrip("\0") for entry in found}


def files(port: int, user: str) -> dict[str, int]:
    """Return paths and ids of a user's open files."""
    endpoint = administrator(port)
    found = srvs.hNetrFileEnum(endpoint, NULL, f"{user}\0", 3)["InfoStruct"]["FileInfo"]["Level3"]["Buffer"]
    endpoint.disconnect()
    return {entry["fi3_path_name"].rstrip("\0"): entry["fi3_id"] for entry in found}


def close_file(port: int, number: int) -> None:
    endpoint = administrator(port)
    srvs.hNetrFileClose(endpoint, number)
    endpoint.disconnect()


def statistics(port: int) -> Any:
    endpoint = administrator(port)
    found = srvs.hNetrServerStatisticsGet(endpoint, NULL, 0, 0)["InfoStruct"]
    endpoint.disconnect()
    return found


def _image() -> bytes:
    folder = Folder()
    making.make(folder.create("disk"), making.Shape(SIZE))
    return folder.get("disk")


def test_impacket_sees_rdma_and_shared_disks(tmp_path: Path) -> None:
    """SESSION_INFO_502, FILE_INFO_3 and NetrFileClose [MS-SRVS 2.2.4.15, 2.2.4.7, 3.1.4.4]."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "disk.vhdx").write_bytes(_image())
    share = Share("data", str(folder), force_user=own_user.NAME, shared_virtual_disks=True)
    users = [User(name, password="pw") for name in ("u", "bob", "eve")]

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            Service(
                shares=[share], users=users, admins=["u"], listen=["127.0.0.1"], port=0, rdma="iwarp", rdma_port=0
            ) as service,
        ):
            port = service.address[1]
            rdma = next(text for text in service.addresses() if text.startswith("iwarp")).rpartition(":")[2].split()[0]
            over_tcp = await Client.connect(await open_tcp(*service.address))
            tree = await (await over_tcp.log_on("bob", "pw")).tree_connect("data")
            over_rdma = await Client.connect(await open_rdma(make_provider("iwarp"), "127.0.0.1", int(rdma)))
            await over_rdma.log_on("eve", "pw")
            asked = svhdx.OpenDevice(1, 1, initiator_id=uuid.uuid4().bytes, originator_flags=Originator.PVHDPARSER)
            context = create_contexts.RawContext(svhdx.OPEN_DEVICE_CONTEXT, svhdx.OPEN_DEVICE.pack(asked))
            name, options = "disk.vhdx:SharedVirtualDisk", int(CreateOptions.NO_INTERMEDIATE_BUFFERING)
            await tree.create(name, access=READ_WRITE, options=options, contexts=[context])
            await tree.create("disk.vhdx:note", READ_WRITE, CreateDisposition.OPEN_IF)
            shown = await asyncio.to_thread(sessions, port)
            assert (shown["bob"], shown["eve"]) == ("TCP", "SMB Direct (iwarp)")
            place = f"C:{folder}/".replace("/", "\\")
            opens = await asyncio.to_thread(files, port, "bob")
            assert set(opens) == {place + name, place + "disk.vhdx:note"}
            assert service.server.virtual_disks.by_key
            await asyncio.to_thread(close_file, port, opens[place + name])
            assert not service.server.virtual_disks.by_key
            assert set(await asyncio.to_thread(files, port, "bob")) == {place + "disk.vhdx:note"}
            await over_rdma.close()
            await over_tcp.close()

    asyncio.run(main())


def test_impacket_sees_sessions_over_quic(tmp_path: Path) -> None:
    pytest.importorskip("aioquic", reason="needs the part quic")
    from smb3server.net.quic.client import open_quic
    from tests.lab.authority import Authority

    authority = Authority(tmp_path)
    certificate = str(authority.make("server", names=["localhost"]))
    users = [User(name, password="pw") for name in ("u", "bob")]

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            Service(
                shares=[Share("data", str(tmp_path), force_user=own_user.NAME)],
                users=users,
                admins=["u"],
                listen=["127.0.0.1"],
                port=0,
                quic={"certificate": certificate, "port": 0},
            ) as service,
        ):
            assert service.quic is not None
            port = service.quic.listeners[0].address[1]
            client = await Client.connect(await open_quic("localhost", port, str(authority.path)))
            await client.log_on("bob", "pw")
            assert (await asyncio.to_thread(sessions, service.address[1]))["bob"] == "QUIC"
            await client.close()

    asyncio.run(main())


def test_statistics_go_on_when_connections_end(tmp_path: Path) -> None:
    """STAT_SERVER_0 [MS-SMB2 3.3.4.24]: bytes of connections that ended, passwords and rights that were wrong."""
    (tmp_path / "f").write_bytes(b"x" * 100000)
    share = Share("data", str(tmp_path), force_user=own_user.NAME, read_only=True)
    smbclient = shutil.which("smbclient")
    if smbclient is None:
        pytest.skip("smbclient is not installed")

    def use(port: int, password: str, command: str) -> None:
        words = [smbclient, "//127.0.0.1/data", "-p", str(port), "-U", f"u%{password}", "-c", command]
        subprocess.run(words, capture_output=True, timeout=60, check=False)

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            Service(
                shares=[share], users=[User("u", password="pw")], admins=["u"], listen=["127.0.0.1"], port=0
            ) as service,
        ):
            port = service.address[1]
            before = await asyncio.to_thread(statistics, port)
            await asyncio.to_thread(use, port, "wrong", "ls")
            await asyncio.to_thread(use, port, "pw", "get f /dev/null; put /etc/hostname g")
            after = await asyncio.to_thread(statistics, port)
            assert after["sts0_bytessent_low"] - before["sts0_bytessent_low"] > 100000
            assert (after["sts0_pwerrors"], before["sts0_pwerrors"]) == (1, 0)
            assert after["sts0_permerrors"] > before["sts0_permerrors"]

    asyncio.run(main())


def test_an_administrator_sees_what_clients_should_do(tmp_path: Path) -> None:
    """SHI1005_FLAGS_* [MS-SRVS 2.2.4.29]: each flag is what the share does."""

    def flags(endpoint: Any, name: str) -> int:
        info = srvs.hNetrShareGetInfo(endpoint, f"{name}\0", 1005)["InfoStruct"]["ShareInfo1005"]
        return int(info["shi1005_flags"])

    def look(port: int) -> None:
        endpoint = administrator(port)
        assert flags(endpoint, "plain") == 0
        assert flags(endpoint, "sql") == COMPRESS | ENCRYPT | LEVEL_II | ABE | MODES["none"]
        assert flags(endpoint, "IPC$") & MODES["none"] == MODES["none"]
        for name in ("a", "b"):
            assert flags(endpoint, name) == {"a": MODES["documents"], "b": MODES["programs"]}[name]
        endpoint.disconnect()

    def share(name: str, **keys: Any) -> Share:
        return Share(name, str(tmp_path), force_user=own_user.NAME, **keys)

    all_of_them = {"compress": True, "encrypt": True, "force_level2_oplocks": True, "access_based_enumeration": True}
    shares = [
        share("plain"),
        share("sql", offline_files="none", **all_of_them),
        share("a", offline_files="documents"),
        share("b", offline_files="programs"),
    ]

    async def main() -> None:
        async with (
            asyncio.timeout(120),
            Service(
                shares=shares, users=[User("u", password="pw")], admins=["u"], listen=["127.0.0.1"], port=0
            ) as service,
        ):
            await asyncio.to_thread(look, service.address[1])

    asyncio.run(main())


NET = """
ip link set lo up
{python} -m smb3server --config {config} --state {state} --listen 127.0.0.1 --port 445 > {out} 2>&1 &
server=$!
for i in $(seq 200); do grep -q ^ready {out} && break; sleep 0.1; done
as="-s {smb_conf} -S 127.0.0.1 -U u%pw"
smbclient -s {smb_conf} //127.0.0.1/data -U bob%pw -c 'put /etc/hostname held' > /dev/null
(echo 'open held'; sleep 20) | smbclient -s {smb_conf} //127.0.0.1/data -U bob%pw > /dev/null &
client=$!
asked="rpcclient -s {smb_conf} -U u%pw 127.0.0.1 -c"
for i in $(seq 200); do $asked netfileenum | grep -q held && break; sleep 0.1; done
net rpc share list $as
net rpc share list $as --long
echo files; net rpc file $as
echo mine; net rpc file user bob $as
$asked 'netsessenum 127.0.0.1 bob; netdiskenum; netremotetod'
net rpc info $as
net rpc user info u $as
echo services; net rpc service list $as 2>&1
net rpc service status LanmanServer $as 2>&1
net rpc service stop LanmanServer $as 2>&1
net rpc service start lanmanserver $as 2>&1
net rpc service status Spooler $as 2>&1
net rpc service list -s {smb_conf} -S 127.0.0.1 -U bob%pw 2>&1
echo registry
lanman='HKLM\\SYSTEM\\CurrentControlSet\\Services\\LanmanServer'
net rpc registry enumerate $lanman $as 2>&1
net rpc registry enumerate "$lanman\\Shares" $as 2>&1
net rpc registry getvalue "$lanman\\Parameters" SrvComment $as 2>&1
net rpc registry createkey "$lanman\\New" $as 2>&1
net rpc registry deletekey "$lanman\\Shares" $as 2>&1
net rpc registry setvalue "$lanman\\Parameters" SMB1 dword 1 $as 2>&1
net rpc registry enumerate HKLM -s {smb_conf} -S 127.0.0.1 -U bob%pw 2>&1
kill $client $server
wait $server
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="net knows port 445 only: it needs a network of its own")
@pytest.mark.skipif(shutil.which("net") is None, reason="Samba's net is not installed")
def test_net_rpc_shows_shares_files_services_and_the_registry(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    (tmp_path / "smb.conf").write_text("[global]\n")
    config = tmp_path / "server.toml"
    config.touch(0o600)
    config.write_text(
        f'[server]\nadmins = ["u"]\n[[user]]\nname = "u"\npassword = "pw"\n[[user]]\nname = "bob"\npassword = "pw"\n'
        f'[[share]]\nname = "data"\npath = "{tmp_path / "data"}"\ncomment = "of all"\n'
    )
    script = NET.format(
        python=sys.executable,
        config=config,
        state=tmp_path / "state",
        out=tmp_path / "out",
        smb_conf=tmp_path / "smb.conf",
    )
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    lists, _, rest = done.stdout.partition("files\n")
    every_file, _, rest = rest.partition("mine\n")
    bobs, _, rest = rest.partition("services\n")
    services, _, registry = rest.partition("registry\n")
    assert "data\n" in lists and "of all" in lists
    held = f"{tmp_path / 'data' / 'held'}".replace("/", "\\")
    assert f"C:{held}" in every_file and "\\PIPE\\srvsvc" in every_file
    assert f"C:{held}" in bobs and "\\PIPE" not in bobs
    assert "Num users: 2" in bobs and "Received 1 entries" in bobs
    assert re.search(r'^LanmanServer +"Server"$', services, re.MULTILINE)
    assert "LanmanServer service is running." in services and "Start Type           = 0x2" in services
    assert re.findall(r"WERR_\w+", services) == [
        "WERR_INVALID_SERVICE_CONTROL",
        "WERR_SERVICE_ALREADY_RUNNING",
        "WERR_SERVICE_DOES_NOT_EXIST",
        "WERR_ACCESS_DENIED",
    ]
    assert 'Value[005] = "ShareName=data"' in registry and 'Value[004] = "Remark=of all"' in registry
    assert "Keyname   = Parameters" in registry and 'Value      = "smb3server"' in registry
    # Nothing can be written, and bob sees nothing.
    assert len(re.findall("ACCESS_DENIED", registry)) == 4


@pytest.mark.skipif(shutil.which("smbclient") is None, reason="smbclient is not installed")
def test_counters_show_what_smbclient_does(tmp_path: Path) -> None:
    """``smb3server metrics --counters`` while smbclient reads one file again and again."""
    served = serve(tmp_path, "--state", str(tmp_path / "state"))
    try:
        (served.share / "f").write_bytes(os.urandom(1 << 20))
        ask = [sys.executable, "-m", "smb3server", "metrics", "--state", str(tmp_path / "state")]
        subprocess.run(ask, cwd=ROOT, capture_output=True, check=True, timeout=60)
        measuring = subprocess.Popen([*ask, "--counters", "5"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        while measuring.poll() is None:
            words = ["smbclient", "//127.0.0.1/share", "-p", str(served.port), "-U", "u%pw", "-c", "get f /dev/null"]
            subprocess.run(words, capture_output=True, check=True, timeout=60)
        assert measuring.stdout is not None
        lines = dict(line.rstrip().rsplit(" : ", 1) for line in measuring.stdout)
        measuring.stdout.close()
    finally:
        assert stop(served) == 0
    value = {path.removeprefix("\\SMB Server Shares(share)\\"): float(number) for path, number in lines.items()}
    assert value["Read Bytes/sec"] > 100_000
    assert value["Avg. Bytes/Read"] > 60_000
    assert 0 < value["Avg. sec/Read"] < 5 and 0 < value["Avg. sec/Request"] < 5
    assert value["Write Requests/sec"] == 0 and value["Total File Open Count"] > 0
    assert value["\\Server\\Files Opened Total"] == value["Total File Open Count"]
    assert value["\\SMB Server\\Read Bytes/sec"] == value["Read Bytes/sec"]

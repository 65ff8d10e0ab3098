"""Services, registry and event log of the server, as programs for Windows' administrators read them.

The judges are rpcclient and impacket. ``net rpc service`` and ``net rpc registry`` are in ``test_server_views``: they
know port 445 only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from smb3server.access.descriptor import unpack
from tests.lab.command import Served, serve, stop
from tools.support import own_user

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import even, rrp, scmr, transport
    from impacket.dcerpc.v5.rpcrt import DCERPCException

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed"),
]
LANMAN = r"SYSTEM\CurrentControlSet\Services\LanmanServer"


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("administered")
    config = folder / "server.toml"
    config.touch(0o600)
    config.write_text(
        f'[server]\nadmins = ["u"]\naudit_file = "{folder / "audit"}"\n[[user]]\nname = "bob"\npassword = "pw"\n'
        f'[[share]]\nname = "seen"\npath = "{folder}"\naudit = true\nforce_user = "{own_user.NAME}"\n'
    )
    server = serve(folder, "--config", str(config))
    yield server
    assert stop(server) == 0


def rpcclient(served: Served, user: str, *commands: str) -> str:
    """Return what rpcclient prints."""
    arguments = ["rpcclient", "-d1", "-p", str(served.port), "-U", f"{user}%pw", "127.0.0.1", "-c", "; ".join(commands)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


@contextmanager
def bound(served: Served, pipe: str, interface: bytes, user: str = "u") -> Iterator[Any]:
    """Return a connection of impacket to an interface."""
    endpoint = transport.SMBTransport("127.0.0.1", served.port, pipe, user, "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(interface)
    try:
        yield endpoint
    finally:
        endpoint.disconnect()


def test_impacket_lists_services(administered: Served) -> None:
    """REnumServicesStatusW, RQueryServiceConfigW, RQueryServiceStatus and RQueryServiceObjectSecurity."""
    with bound(administered, r"\svcctl", scmr.MSRPC_UUID_SCMR) as endpoint:
        manager = scmr.hROpenSCManagerW(endpoint)["lpScHandle"]
        found = scmr.hREnumServicesStatusW(endpoint, manager)
        names = {entry["lpServiceName"].rstrip("\0"): entry["ServiceStatus"]["dwCurrentState"] for entry in found}
        assert names == dict.fromkeys(("LanmanServer", "RemoteRegistry", "EventLog"), scmr.SERVICE_RUNNING)
        service = scmr.hROpenServiceW(endpoint, manager, "lanmanserver\0")["lpServiceHandle"]
        config = scmr.hRQueryServiceConfigW(endpoint, service)["lpServiceConfig"]
        assert config["lpDisplayName"] == "Server\0" and config["lpBinaryPathName"].startswith("C:\\")
        status = scmr.hRQueryServiceStatus(endpoint, service)["lpServiceStatus"]
        assert (status["dwServiceType"], status["dwControlsAccepted"]) == (scmr.SERVICE_WIN32_SHARE_PROCESS, 0)
        security = b"".join(scmr.hRQueryServiceObjectSecurity(endpoint, service, 7)["lpSecurityDescriptor"])
        acl = unpack(security).dacl
        assert acl is not None and [(str(ace.sid), ace.mask) for ace in acl.aces] == [("S-1-5-32-544", 0xF01FF)]
        for refused in (
            lambda: scmr.hRDeleteService(endpoint, service),
            lambda: scmr.hRChangeServiceConfigW(endpoint, service, dwStartType=4),
            lambda: scmr.hRCreateServiceW(endpoint, manager, "new\0", "New\0", lpBinaryPathName="x\0"),
        ):
            with pytest.raises(DCERPCException, match="access_denied"):
                refused()


def test_impacket_reads_the_registry(administered: Served) -> None:
    """BaseRegQueryInfoKey, BaseRegEnumKey, BaseRegEnumValue, BaseRegQueryMultipleValues, BaseRegGetKeySecurity."""
    with bound(administered, r"\winreg", rrp.MSRPC_UUID_RRP) as endpoint:
        root = rrp.hOpenLocalMachine(endpoint)["phKey"]
        key = rrp.hBaseRegOpenKey(endpoint, root, LANMAN + "\0")["phkResult"]
        told = rrp.hBaseRegQueryInfoKey(endpoint, key)
        assert (told["lpcSubKeys"], told["lpcValues"]) == (2, 7)
        below = [rrp.hBaseRegEnumKey(endpoint, key, number)["lpNameOut"].rstrip("\0") for number in range(2)]
        assert below == ["Parameters", "Shares"]
        with pytest.raises(DCERPCException, match="NO_MORE_ITEMS"):
            rrp.hBaseRegEnumKey(endpoint, key, 2)
        shares = rrp.hBaseRegOpenKey(endpoint, key, "Shares\0")["phkResult"]
        value = rrp.hBaseRegEnumValue(endpoint, shares, 0)
        assert value["lpType"] == rrp.REG_MULTI_SZ
        assert "ShareName=seen\0" in b"".join(value["lpData"]).decode("utf-16-le")
        version = rrp.hBaseRegOpenKey(endpoint, root, "Software\\Microsoft\\Windows NT\\CurrentVersion\0")["phkResult"]
        asked = [{"ValueName": name, "ValueType": rrp.REG_SZ} for name in ("ProductName", "CurrentVersion")]
        product, number = rrp.hBaseRegQueryMultipleValues(endpoint, version, asked)
        assert product["ValueData"].startswith("smb3server ") and number["ValueData"] == "10.0\0"
        security = rrp.hBaseRegGetKeySecurity(endpoint, key)["pRpcSecurityDescriptorOut"]["lpSecurityDescriptor"]
        assert str(unpack(b"".join(security)).owner) == "S-1-5-18"
        with pytest.raises(DCERPCException, match="access_denied"):
            rrp.hBaseRegOpenKey(endpoint, root, LANMAN + "\0", samDesired=rrp.KEY_SET_VALUE)
        with pytest.raises(DCERPCException, match="access_denied"):
            rrp.hBaseRegSetValue(endpoint, key, "Start\0", rrp.REG_DWORD, 4)


def test_impacket_reads_a_batch_of_events(administered: Served) -> None:
    """ElfrReadELW of as many bytes as there may be. [MS-EVEN 2.2.9]"""
    with bound(administered, r"\eventlog", even.MSRPC_UUID_EVEN) as endpoint:
        log = even.hElfrOpenELW(endpoint, "Application", "")["LogHandle"]
        assert even.hElfrNumberOfRecords(endpoint, log)["NumberOfRecords"] == 0
        with pytest.raises(DCERPCException, match="END_OF_FILE"):
            even.hElfrReadELW(endpoint, log, even.EVENTLOG_SEQUENTIAL_READ | even.EVENTLOG_FORWARDS_READ, 0, 4096)


def test_rpcclient_reads_the_event_log(administered: Served) -> None:
    """A refused logon is event 551 of System; the use of a share is event 5140 of Security. [MS-EVEN 3.1.4.7]"""
    arguments = ["smbclient", "-p", str(administered.port), "-U", "bob%wrong", "//127.0.0.1/seen", "-c", "quit"]
    subprocess.run(arguments, capture_output=True, timeout=30, check=False)
    arguments[4] = "bob%pw"
    subprocess.run(arguments, capture_output=True, timeout=30, check=False)
    shown = rpcclient(administered, "u", "eventlog_numrecord System", "eventlog_oldestrecord System")
    assert re.search("number of records: [1-9]", shown) and "oldest entry: 1" in shown
    system = rpcclient(administered, "u", "eventlog_readlog System")
    assert re.search(r"EventID +: 0x\w+ \(551\)\n +EventType +: EVENTLOG_WARNING_TYPE", system)
    assert re.search(r"Strings +: 'logon refused: user \S*bob from 127", system)
    audit = rpcclient(administered, "u", "eventlog_readlog Security")
    assert re.search(r"EventID +: 0x\w+ \(5140\)\n +EventType +: EVENTLOG_AUDIT_SUCCESS", audit)
    assert re.search("Strings +: 'user: bob'", audit) and re.search("Strings +: 'share: seen'", audit)


def test_only_administrators_read_the_event_log_and_nobody_changes_it(administered: Served) -> None:
    """ElfrOpenELW, ElfrBackupELFW and ElfrRegisterEventSourceW. [MS-EVEN 3.1.4.3, 3.1.4.11, 3.1.4.5]"""
    assert "NT_STATUS_ACCESS_DENIED" in rpcclient(administered, "bob", "eventlog_numrecord Security")
    assert "NT_STATUS_ACCESS_DENIED" in rpcclient(administered, "u", "eventlog_backuplog System copy")
    assert "NT_STATUS_ACCESS_DENIED" in rpcclient(administered, "u", "eventlog_registerevsource System")


def test_rpcclient_asks_the_workstation_service(administered: Served) -> None:
    """NetrGetJoinInformation, NetrEnumerateComputerNames and NetprNameValidate."""
    shown = rpcclient(administered, "u", "wkssvc_getjoininformation", "wkssvc_enumeratecomputernames")
    assert "WORKGROUP (2)" in shown and re.search(r"name: 0 \S+", shown)
    assert "WERR" not in rpcclient(administered, "u", "netnamevalidate data 9", "wkssvc_enumerateusers")
    assert "WERR_INVALID_NAME" in rpcclient(administered, "u", "netnamevalidate a|b 9")
    assert "WERR_ACCESS_DENIED" in rpcclient(administered, "bob", "wkssvc_enumerateusers")

"""Names, SIDs, accounts, sessions and files over RPC: rpcclient and impacket against the command."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.command import Served

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from impacket.dcerpc.v5 import lsad, lsat, samr, srvs, transport
    from impacket.dcerpc.v5.dtypes import MAXIMUM_ALLOWED
    from impacket.dcerpc.v5.rpcrt import DCERPCException

needs_rpcclient = pytest.mark.skipif(shutil.which("rpcclient") is None, reason="rpcclient is not installed")


@contextmanager
def bound(served: Served, pipe: str, interface: Any) -> Iterator[Any]:
    endpoint = transport.SMBTransport("127.0.0.1", served.port, pipe, "u", "pw").get_dce_rpc()
    endpoint.connect()
    endpoint.bind(interface)
    yield endpoint
    endpoint.disconnect()


def rpcclient(served: Served, command: str) -> str:
    arguments = ["rpcclient", "-p", str(served.port), "-U", "u%pw", "127.0.0.1", "-c", command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False).stdout


@needs_rpcclient
def test_rpcclient_looks_up_names_and_sids(served: Served) -> None:
    found = re.search(r"u (S-1-5-21-\d+-\d+-\d+-(\d+)) \(User: 1\)", rpcclient(served, "lookupnames u"))
    assert found is not None
    sid, rid = found.groups()
    answer = rpcclient(served, f"lookupsids {sid} S-1-1-0 S-1-5-32-544 S-1-22-1-0 S-1-22-2-0 S-1-5-21-1-2-3-4")
    assert re.search(rf"{sid} \S+\\u \(1\)", answer)
    assert "S-1-5-32-544 BUILTIN\\Administrators (4)" in answer
    assert "Everyone (5)" in answer
    assert "S-1-22-1-0 Unix User\\root (1)" in answer
    assert "S-1-22-2-0 Unix Group\\root (2)" in answer
    assert "S-1-5-21-1-2-3-4 *unknown*" in answer
    assert f"rid:[{int(rid):#x}]" in rpcclient(served, "enumdomusers")
    assert "name u:" in rpcclient(served, "samlookupnames domain u")
    assert "name Administrators:" in rpcclient(served, "samlookupnames builtin Administrators")
    assert "[Users]" in rpcclient(served, "enumalsgroups builtin")
    assert "Account Name: u" in rpcclient(served, "getusername")


@pytest.mark.parametrize("pipe", ["lsarpc", "lsass"])
def test_impacket_lookups(served: Served, pipe: str) -> None:
    with bound(served, pipe, lsat.MSRPC_UUID_LSAT) as endpoint:
        policy = lsad.hLsarOpenPolicy2(endpoint, MAXIMUM_ALLOWED)["PolicyHandle"]
        for look_up in (lsat.hLsarLookupNames, lsat.hLsarLookupNames2, lsat.hLsarLookupNames3):
            answer = look_up(endpoint, policy, ["u", "Everyone"])
            assert answer["MappedCount"] == 2
        # Names with a fixed RID have it, whatever the account's of the same name would be. [MS-LSAT 3.1.4.7, 3.1.4.8]
        for look_up in (lsat.hLsarLookupNames, lsat.hLsarLookupNames2):
            answer = look_up(endpoint, policy, ["Guest", "Administrators"])
            assert [entry["RelativeId"] for entry in answer["TranslatedSids"]["Sids"]] == [501, 544]
        answer = lsat.hLsarLookupSids2(endpoint, policy, ["S-1-5-18", "S-1-1-0"])
        names = [entry["Name"] for entry in answer["TranslatedNames"]["Names"]]
        assert names == ["SYSTEM", "Everyone"]
        with pytest.raises(DCERPCException, match="STATUS_NONE_MAPPED"):
            lsat.hLsarLookupNames(endpoint, policy, ["nobody at all"])
        level = lsad.POLICY_INFORMATION_CLASS.PolicyAccountDomainInformation
        info = lsad.hLsarQueryInformationPolicy2(endpoint, policy, level)["PolicyInformation"]
        assert info["PolicyAccountDomainInfo"]["DomainSid"].formatCanonical().startswith("S-1-5-21-")
        lsad.hLsarClose(endpoint, policy)
        with pytest.raises(DCERPCException, match="context"):
            lsat.hLsarLookupNames(endpoint, policy, ["u"])


def test_impacket_accounts(served: Served) -> None:
    with bound(served, "samr", samr.MSRPC_UUID_SAMR) as endpoint:
        server = samr.hSamrConnect5(endpoint)["ServerHandle"]
        domains = samr.hSamrEnumerateDomainsInSamServer(endpoint, server)["Buffer"]["Buffer"]
        name = domains[0]["Name"]
        sid = samr.hSamrLookupDomainInSamServer(endpoint, server, name)["DomainId"]
        domain = samr.hSamrOpenDomain(endpoint, server, domainId=sid)["DomainHandle"]
        users = samr.hSamrEnumerateUsersInDomain(endpoint, domain)["Buffer"]["Buffer"]
        assert [user["Name"] for user in users] == ["u"]
        rid = users[0]["RelativeId"]
        found = samr.hSamrLookupNamesInDomain(endpoint, domain, ("u",))
        assert found["RelativeIds"]["Element"][0]["Data"] == rid
        assert samr.hSamrLookupIdsInDomain(endpoint, domain, (rid,))["Names"]["Element"][0]["Data"] == "u"
        user = samr.hSamrOpenUser(endpoint, domain, userId=rid)["UserHandle"]
        level = samr.USER_INFORMATION_CLASS.UserGeneralInformation
        assert samr.hSamrQueryInformationUser2(endpoint, user, level)["Buffer"]["General"]["UserName"] == "u"
        assert samr.hSamrGetGroupsForUser(endpoint, user)["Groups"]["Groups"][0]["RelativeId"] == 513
        with pytest.raises(DCERPCException, match="STATUS_NO_SUCH_USER"):
            samr.hSamrOpenUser(endpoint, domain, userId=500)


def test_impacket_sessions_and_files(served: Served) -> None:
    with bound(served, "srvsvc", srvs.MSRPC_UUID_SRVS) as endpoint:
        for level in (0, 1, 2, 10, 502):
            answer = srvs.hNetrSessionEnum(endpoint, "\0", "\0", level)
            sessions = answer["InfoStruct"]["SessionInfo"][f"Level{level}"]["Buffer"]
            assert len(sessions) == answer["TotalEntries"] > 0
            assert sessions[0][f"sesi{level}_cname"] == "127.0.0.1\0"
        files = srvs.hNetrFileEnum(endpoint, "\0", "\0", 3)["InfoStruct"]["FileInfo"]["Level3"]["Buffer"]
        assert ("\\PIPE\\srvsvc\0", "u\0") in [(entry["fi3_path_name"], entry["fi3_username"]) for entry in files]
        assert srvs.hNetrFileEnum(endpoint, "C:\\none\0", "\0", 2)["TotalEntries"] == 0

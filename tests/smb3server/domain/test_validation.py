"""The user out of what a controller says."""

from __future__ import annotations

from typing import Any

import pytest
from impacket.dcerpc.v5 import nrpc
from impacket.krb5.pac import KERB_SID_AND_ATTRIBUTES, KERB_VALIDATION_INFO

from smb3server.access.descriptor import Sid
from smb3server.domain.validation import MAX_GROUPS, of_a_domain, user_of

DOMAIN, RESOURCES = "S-1-5-21-1-2-3", "S-1-5-21-4-5-6"
ENABLED, DENY_ONLY = 7, 0x10


def groups(*rids: int, attributes: int = ENABLED) -> list[Any]:
    made = []
    for rid in rids:
        entry = nrpc.GROUP_MEMBERSHIP()
        entry["RelativeId"], entry["Attributes"] = rid, attributes
        made.append(entry)
    return made


def extra(*sids: str, attributes: int = ENABLED) -> list[Any]:
    made = []
    for sid in sids:
        entry = KERB_SID_AND_ATTRIBUTES()
        entry["Sid"].fromCanonical(sid)
        entry["Attributes"] = attributes
        made.append(entry)
    return made


def info(flags: int = 0, user: int = 1104, sids: tuple[str, ...] = ()) -> Any:
    made = KERB_VALIDATION_INFO()
    made["EffectiveName"], made["LogonDomainName"] = "alice", "CORP"
    made["LogonDomainId"].fromCanonical(DOMAIN)
    made["UserId"], made["PrimaryGroupId"], made["UserFlags"] = user, 513, flags
    made["GroupIds"] = groups(513, 1200) + groups(1300, attributes=DENY_ONLY)
    made["GroupCount"] = 3
    made["ExtraSids"] = extra(*sids)
    made["SidCount"] = len(sids)
    made["ResourceGroupDomainSid"].fromCanonical(RESOURCES)
    made["ResourceGroupIds"] = groups(1500)
    made["ResourceGroupCount"] = 1
    return made


def rids(found: frozenset[Sid]) -> set[str]:
    return {str(sid) for sid in found}


def test_groups_that_are_not_enabled_do_not_count() -> None:
    user = user_of(info(), "CORP.EXAMPLE")
    assert (str(user.sid), user.realm) == (f"{DOMAIN}-1104", "CORP.EXAMPLE")
    assert rids(user.groups) == {f"{DOMAIN}-513", f"{DOMAIN}-1200"}


def test_flags_say_which_lists_count() -> None:
    """[MS-PAC 2.5]"""
    assert f"{RESOURCES}-1500" in rids(user_of(info(0x200), "R").groups)
    assert f"{RESOURCES}-7" not in rids(user_of(info(sids=(f"{RESOURCES}-7",)), "R").groups)
    assert f"{RESOURCES}-7" in rids(user_of(info(0x20, sids=(f"{RESOURCES}-7",)), "R").groups)
    assert user_of(info(1), "R").guest


@pytest.mark.parametrize("sid", ["S-1-5-32-544", "S-1-5-18", "S-1-1-0", "S-1-22-1-0", "S-1-16-16384", "S-1-5-21-1-2-3"])
def test_no_controller_says_who_is_in_groups_of_the_server(sid: str) -> None:
    assert not of_a_domain(Sid.parse(sid))
    assert sid not in rids(user_of(info(0x20, sids=(sid,)), "R").groups)


def test_nobody_in_particular_is_refused() -> None:
    with pytest.raises(ValueError, match="RID"):
        user_of(info(user=0), "R")
    many = info()
    many["GroupCount"] = MAX_GROUPS + 1
    with pytest.raises(ValueError, match="groups"):
        user_of(many, "R")


def test_groups_of_the_servers_domain_are_known_by_their_place() -> None:
    """A PAC has them apart. An answer to NETLOGON marks them. [MS-PAC 2.2.1, 2.5]"""
    marked = extra(f"{RESOURCES}-7", attributes=0x20000007)
    ticket = info(0x220, sids=(f"{RESOURCES}-7",))
    ticket["ExtraSids"] = marked
    user = user_of(ticket, "R")
    assert rids(user.local_groups) == {f"{RESOURCES}-1500"} and f"{RESOURCES}-7" in rids(user.groups)
    answer = nrpc.NETLOGON_VALIDATION_SAM_INFO4()
    answer["LogonDomainId"].fromCanonical(DOMAIN)
    answer["UserId"], answer["PrimaryGroupId"], answer["UserFlags"], answer["GroupCount"] = 1104, 513, 0x20, 1
    answer["GroupIds"], answer["ExtraSids"], answer["SidCount"] = groups(513), marked, 1
    user = user_of(answer, "R")
    assert rids(user.local_groups) == {f"{RESOURCES}-7"} and user.local_groups < user.groups

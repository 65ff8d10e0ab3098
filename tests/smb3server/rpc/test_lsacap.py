"""Which central access policies a server applies, as dialogs ask it. impacket has the layout. [MS-CAPR 3.1.4.1]"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from impacket.dcerpc.v5.dtypes import ULONG
from impacket.dcerpc.v5.lsat import LSAPR_SID_ENUM_BUFFER
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.access.descriptor import Sid
from smb3server.access.policies import Policies, Policy
from smb3server.rpc.lsacap import interface
from smb3server.wire.status import NtStatus

SIDS = [Sid.parse("S-1-17-1-2"), Sid.parse("S-1-17-1-3-4-5")]


class Answer(NDRCALL):  # type: ignore[misc]
    structure = (("WrappedCAPIDs", LSAPR_SID_ENUM_BUFFER), ("ErrorCode", ULONG))


def asked(policies: Policies | None, may_ask: bool = True) -> tuple[int, list[str]]:
    """The status and the ids."""
    accounts: Any = SimpleNamespace(policies=policies, may_be_asked_by=lambda identity: may_ask)
    session: Any = SimpleNamespace(identity=None)
    stub = interface(accounts, session).operations[0](b"")
    assert isinstance(stub, bytes)
    answer = Answer(stub)
    found = answer["WrappedCAPIDs"]["SidInfo"]
    sids = [] if isinstance(found, bytes) else [entry["Sid"].formatCanonical() for entry in found]
    assert answer["WrappedCAPIDs"]["Entries"] == len(sids)
    return answer["ErrorCode"], sids


def test_the_ids_of_all_policies_are_told() -> None:
    policies = Policies()
    policies.replace({sid: Policy("p", ()) for sid in reversed(SIDS)})
    assert asked(policies) == (0, [str(sid) for sid in SIDS])


@pytest.mark.parametrize("policies", [None, Policies()], ids=["no domain", "none known"])
def test_a_server_may_have_none(policies: Policies | None) -> None:
    assert asked(policies) == (0, [])


def test_strangers_are_told_nothing() -> None:
    policies = Policies()
    policies.replace({SIDS[0]: Policy("p", ())})
    assert asked(policies, may_ask=False) == (NtStatus.ACCESS_DENIED, [])

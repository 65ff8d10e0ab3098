"""Central Access Policy Identifier Retrieval: which policies this server applies, for security dialogs. [MS-CAPR]"""

from __future__ import annotations

from typing import Any

from impacket.dcerpc.v5.dtypes import ULONG
from impacket.dcerpc.v5.lsat import LSAPR_SID_ENUM_BUFFER, LSAPR_SID_INFORMATION
from impacket.dcerpc.v5.ndr import NDRCALL

from smb3server.auth.directory import Directory
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.lsa_structures import rpc_sid
from smb3server.rpc.ndr import operation, wire_uuid
from smb3server.state.objects import Session
from smb3server.wire.status import NtStatus

UUID = wire_uuid("AFC07E2E-311C-4435-808C-C483FFEEC7C9")
VERSION = 1


class _Request(NDRCALL):  # type: ignore[misc]
    opnum = 0
    structure = ()


class _Answer(NDRCALL):  # type: ignore[misc]
    # LSAPR_WRAPPED_CAPID_SET has the members of LSAPR_SID_ENUM_BUFFER. [MS-CAPR 2.2.1.1]
    structure = (("WrappedCAPIDs", LSAPR_SID_ENUM_BUFFER), ("ErrorCode", ULONG))


def interface(accounts: Directory, session: Session) -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""

    def available(request: Any) -> Any:
        """Serve LsarGetAvailableCAPIDs, to those who have proved who they are. [MS-CAPR 3.1.4.1]"""
        del request
        answer = _Answer()
        answer["WrappedCAPIDs"]["Entries"] = 0
        answer["ErrorCode"] = 0
        if not accounts.may_be_asked_by(session.identity):
            answer["ErrorCode"] = NtStatus.ACCESS_DENIED
            return answer
        sids = sorted(accounts.policies.known) if accounts.policies is not None else []
        for sid in sids:
            entry = LSAPR_SID_INFORMATION()
            entry["Sid"] = rpc_sid(sid)
            answer["WrappedCAPIDs"]["SidInfo"].append(entry)
        answer["WrappedCAPIDs"]["Entries"] = len(sids)
        return answer

    return Interface(UUID, VERSION, {0: operation(_Request, available)})

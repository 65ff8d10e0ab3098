"""Directory Services Setup: which role the server has in a domain. It has none. [MS-DSSP]"""

from __future__ import annotations

from typing import Any

from impacket.dcerpc.v5 import dssp
from impacket.dcerpc.v5.dtypes import NULL, ULONG

from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import ERROR_INVALID_PARAMETER, operation, text, wire_uuid

UUID = wire_uuid("3919286A-B10C-11D0-9BA8-00C04FD92EF5")
VERSION = 0
_BASIC, _UPGRADE, _OPERATION = 1, 2, 3
_STANDALONE_SERVER = 2


class _Answer(dssp.DsRolerGetPrimaryDomainInformationResponse):  # type: ignore[misc]
    structure = (*dssp.DsRolerGetPrimaryDomainInformationResponse.structure, ("ErrorCode", ULONG))


def _get_role(request: Any) -> Any:
    """Serve DsRolerGetPrimaryDomainInformation. [MS-DSSP 3.2.5.1]"""
    level = int(request["InfoLevel"])
    answer = _Answer()
    if level not in (_BASIC, _UPGRADE, _OPERATION):
        answer["DomainInfo"] = NULL
        answer["ErrorCode"] = ERROR_INVALID_PARAMETER
        return answer
    answer["DomainInfo"]["tag"] = level
    if level == _BASIC:
        basic = answer["DomainInfo"]["DomainInfoBasic"]
        basic["MachineRole"] = _STANDALONE_SERVER
        basic["DomainNameFlat"] = text("WORKGROUP")
        basic["DomainNameDns"] = basic["DomainForestName"] = NULL
        basic["DomainGuid"] = bytes(16)
    elif level == _UPGRADE:
        answer["DomainInfo"]["UpgradStatusInfo"]["PreviousServerState"] = 0
    else:
        answer["DomainInfo"]["OperationStateInfo"]["OperationState"] = 0
    return answer


def interface() -> Interface:
    """Return the operations that are served. All others fault with the opnum out of range."""
    return Interface(UUID, VERSION, {0: operation(dssp.DsRolerGetPrimaryDomainInformation, _get_role)})

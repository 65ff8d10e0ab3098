"""File Server Remote VSS: backup programs make shadow copies of shares. [MS-FSRVP]"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from impacket.dcerpc.v5.dtypes import DWORD, GUID, LONGLONG, LPWSTR, NULL, ULONG, WSTR
from impacket.dcerpc.v5.ndr import NDRCALL, NDRPOINTER, NDRSTRUCT, NDRUNION

from smb3server.backends.snapshot_names import filetime_of
from smb3server.rpc.dcerpc import Interface
from smb3server.rpc.ndr import declare, operation_later, text, wire_uuid
from smb3server.state.objects import Session
from smb3server.state.server_state import ServerState
from smb3server.state.shadow_copies import Error, ShadowCopyAgent, ShadowCopyError

UUID = wire_uuid("A8E0653C-2744-4389-A61D-7373DF8B2292")
VERSION = 1
FSRVP_RPC_VERSION_1 = 1
"""The only version of the protocol. [MS-FSRVP 2.2.2.4]"""
_LEVEL_1 = 1


def _request(opnum: int, *fields: tuple[str, Any]) -> Any:
    return declare(NDRCALL, opnum=opnum, structure=fields)


def _response(*fields: tuple[str, Any]) -> Any:
    return declare(NDRCALL, structure=(*fields, ("ErrorCode", ULONG)))


ShareMapping1 = declare(
    NDRSTRUCT,
    structure=(
        ("ShadowCopySetId", GUID),
        ("ShadowCopyId", GUID),
        ("ShareNameUNC", LPWSTR),
        ("ShadowCopyShareName", LPWSTR),
        ("CreationTimestamp", LONGLONG),
    ),
)
"""FSSAGENT_SHARE_MAPPING_1. [MS-FSRVP 2.2.1.1]"""
_PointerToMapping1 = declare(NDRPOINTER, referent=(("Data", ShareMapping1),))


class ShareMapping(NDRUNION):  # type: ignore[misc]
    """FSSAGENT_SHARE_MAPPING. [MS-FSRVP 2.2.3.1]"""

    commonHdr = (("tag", ULONG),)
    union = {_LEVEL_1: ("ShareMapping1", _PointerToMapping1)}


GetSupportedVersion = _request(0)
GetSupportedVersionResponse = _response(("MinVersion", DWORD), ("MaxVersion", DWORD))
SetContext = _request(1, ("Context", ULONG))
StartShadowCopySet = _request(2, ("ClientShadowCopySetId", GUID))
StartShadowCopySetResponse = _response(("ShadowCopySetId", GUID))
AddToShadowCopySet = _request(3, ("ClientShadowCopyId", GUID), ("ShadowCopySetId", GUID), ("ShareName", WSTR))
AddToShadowCopySetResponse = _response(("ShadowCopyId", GUID))
CommitShadowCopySet = _request(4, ("ShadowCopySetId", GUID), ("TimeOutInMilliseconds", ULONG))
ExposeShadowCopySet = _request(5, ("ShadowCopySetId", GUID), ("TimeOutInMilliseconds", ULONG))
RecoveryCompleteShadowCopySet = _request(6, ("ShadowCopySetId", GUID))
AbortShadowCopySet = _request(7, ("ShadowCopySetId", GUID))
IsPathSupported = _request(8, ("ShareName", WSTR))
IsPathSupportedResponse = _response(("SupportedByThisProvider", DWORD), ("OwnerMachineName", LPWSTR))
IsPathShadowCopied = _request(9, ("ShareName", WSTR))
IsPathShadowCopiedResponse = _response(("ShadowCopyPresent", DWORD), ("ShadowCopyCompatibility", ULONG))
GetShareMapping = _request(10, ("ShadowCopyId", GUID), ("ShadowCopySetId", GUID), ("ShareName", WSTR), ("Level", DWORD))
GetShareMappingResponse = _response(("ShareMapping", ShareMapping))
DeleteShareMapping = _request(11, ("ShadowCopySetId", GUID), ("ShadowCopyId", GUID), ("ShareName", WSTR))
PrepareShadowCopySet = _request(12, ("ShadowCopySetId", GUID), ("TimeOutInMilliseconds", ULONG))
Status = _response()


def _id(value: Any) -> uuid.UUID:
    return uuid.UUID(bytes_le=bytes(value))


def _given(value: Any) -> uuid.UUID:
    """Return a GUID that must not be zero."""
    found = _id(value)
    if not found.int:
        raise ShadowCopyError(Error.INVALID_ARGUMENT)
    return found


def _name(value: Any) -> str:
    return str(value["Data"]).rstrip("\0")


class _Service:
    """The calls of one client. Administrators alone may make any. [MS-FSRVP 3.1.4, footnote 4]"""

    def __init__(self, server: ServerState, session: Session, agent: ShadowCopyAgent) -> None:
        self._server = server
        self._session = session
        self._agent = agent

    def answering(
        self, answer_type: Any, serve: Callable[[Any, Any], Awaitable[None]], empty: Callable[[Any], None] | None = None
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return a function that checks the caller, lets ``serve`` fill an answer, and reports what it raises.

        ``empty`` fills what an answer with an error needs."""

        async def call(request: Any) -> Any:
            answer = answer_type()
            answer["ErrorCode"] = 0
            try:
                if not self._server.accounts.administers(self._session.identity):
                    raise ShadowCopyError(Error.ACCESS_DENIED)
                await serve(request, answer)
            except ShadowCopyError as error:
                answer = answer_type()
                if empty is not None:
                    empty(answer)
                answer["ErrorCode"] = int(error.error)
            return answer

        return call

    async def version(self, _: Any, answer: Any) -> None:
        """Serve GetSupportedVersion. [MS-FSRVP 3.1.4.1]"""
        answer["MinVersion"] = answer["MaxVersion"] = FSRVP_RPC_VERSION_1

    async def set_context(self, request: Any, _: Any) -> None:
        """Serve SetContext."""
        await self._agent.set_context(self._session.connection.client_name, int(request["Context"]))

    async def start(self, request: Any, answer: Any) -> None:
        """Serve StartShadowCopySet."""
        _given(request["ClientShadowCopySetId"])
        answer["ShadowCopySetId"] = (await self._agent.start()).id.bytes_le

    async def add(self, request: Any, answer: Any) -> None:
        """Serve AddToShadowCopySet."""
        copy = await self._agent.add(_id(request["ShadowCopySetId"]), _name(request.fields["ShareName"]))
        answer["ShadowCopyId"] = copy.id.bytes_le

    async def commit(self, request: Any, _: Any) -> None:
        """Serve CommitShadowCopySet. A snapshot takes no longer than any client waits."""
        await self._agent.commit(_id(request["ShadowCopySetId"]))

    async def expose(self, request: Any, _: Any) -> None:
        """Serve ExposeShadowCopySet."""
        await self._agent.expose(_id(request["ShadowCopySetId"]))

    async def recovered(self, request: Any, _: Any) -> None:
        """Serve RecoveryCompleteShadowCopySet."""
        await self._agent.recovered(_id(request["ShadowCopySetId"]))

    async def abort(self, request: Any, _: Any) -> None:
        """Serve AbortShadowCopySet."""
        await self._agent.abort(_given(request["ShadowCopySetId"]))

    async def is_supported(self, request: Any, answer: Any) -> None:
        """Serve IsPathSupported."""
        self._agent.volume(_name(request.fields["ShareName"]))
        answer["SupportedByThisProvider"] = 1
        answer["OwnerMachineName"] = text(self._server.settings.server_name)

    async def is_copied(self, request: Any, answer: Any) -> None:
        """Serve IsPathShadowCopied."""
        answer["ShadowCopyPresent"] = int(self._agent.is_copied(_name(request.fields["ShareName"])))

    async def mapping(self, request: Any, answer: Any) -> None:
        """Serve GetShareMapping."""
        if request["Level"] != _LEVEL_1:
            raise ShadowCopyError(Error.INVALID_ARGUMENT)
        found, copy = self._agent.mapping(
            _id(request["ShadowCopySetId"]), _id(request["ShadowCopyId"]), _name(request.fields["ShareName"])
        )
        answer["ShareMapping"]["tag"] = _LEVEL_1
        told = answer["ShareMapping"]["ShareMapping1"]
        told["ShadowCopySetId"], told["ShadowCopyId"] = found.id.bytes_le, copy.id.bytes_le
        told["ShareNameUNC"] = text(copy.unc)
        exposed = copy.exposed
        told["ShadowCopyShareName"] = text(exposed.name) if exposed is not None else NULL
        told["CreationTimestamp"] = filetime_of(int(copy.created))

    async def delete_mapping(self, request: Any, _: Any) -> None:
        """Serve DeleteShareMapping."""
        number, copy = _given(request["ShadowCopySetId"]), _given(request["ShadowCopyId"])
        await self._agent.delete_mapping(number, copy, _name(request.fields["ShareName"]))

    async def prepare(self, request: Any, _: Any) -> None:
        """Serve PrepareShadowCopySet."""
        await self._agent.prepare(_id(request["ShadowCopySetId"]))


def _no_owner(answer: Any) -> None:
    answer["OwnerMachineName"] = NULL


def _no_mapping(answer: Any) -> None:
    answer["ShareMapping"]["tag"] = _LEVEL_1
    answer["ShareMapping"]["ShareMapping1"] = NULL


def interface(server: ServerState, session: Session, agent: ShadowCopyAgent) -> Interface:
    """Return the operations of the interface."""
    service = _Service(server, session, agent)
    answering = service.answering
    return Interface(
        UUID,
        VERSION,
        {
            0: operation_later(GetSupportedVersion, answering(GetSupportedVersionResponse, service.version)),
            1: operation_later(SetContext, answering(Status, service.set_context)),
            2: operation_later(StartShadowCopySet, answering(StartShadowCopySetResponse, service.start)),
            3: operation_later(AddToShadowCopySet, answering(AddToShadowCopySetResponse, service.add)),
            4: operation_later(CommitShadowCopySet, answering(Status, service.commit)),
            5: operation_later(ExposeShadowCopySet, answering(Status, service.expose)),
            6: operation_later(RecoveryCompleteShadowCopySet, answering(Status, service.recovered)),
            7: operation_later(AbortShadowCopySet, answering(Status, service.abort)),
            8: operation_later(IsPathSupported, answering(IsPathSupportedResponse, service.is_supported, _no_owner)),
            9: operation_later(IsPathShadowCopied, answering(IsPathShadowCopiedResponse, service.is_copied)),
            10: operation_later(GetShareMapping, answering(GetShareMappingResponse, service.mapping, _no_mapping)),
            11: operation_later(DeleteShareMapping, answering(Status, service.delete_mapping)),
            12: operation_later(PrepareShadowCopySet, answering(Status, service.prepare)),
        },
    )

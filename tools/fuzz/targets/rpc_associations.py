"""Fragments of DCE/RPC: binds, logons in them, calls in pieces, over all interfaces. [C706 12, MS-RPCE 2.2.2]"""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.rpc import dcerpc
from smb3server.rpc.dcerpc import COMMON, CONTEXT_ITEM, BindBody, CommonHeader, ContextItem, RequestBody
from tools.fuzz import framed
from tools.fuzz.services import Services
from tools.fuzz.target import Target, Wrong

SERVICES = Services()
MOST_OUTPUT = 1 << 20
NDR = bytes.fromhex("045d888aeb1cc9119fe808002b10486002000000")


def _run(data: bytes) -> None:
    SERVICES.run(lambda: _feed(data))


def _feed(data: bytes) -> None:
    association = SERVICES.association()
    try:
        for body in framed.split(data):
            fragment = bytearray(body)
            if len(fragment) >= COMMON.size and fragment[0] == 5:
                fragment[8:10] = len(fragment).to_bytes(2, "little")
            association.feed(bytes(fragment))
            if association.waits:
                association.resume()
            if sum(map(len, association.output)) > MOST_OUTPUT:
                raise Wrong("answers without bound")
    finally:
        association.close()


def _pdu(kind: int, body: bytes, call_id: int = 1, flags: int = 3) -> bytes:
    return COMMON.pack(CommonHeader(5, 0, kind, flags, fragment_length=0, auth_length=0, call_id=call_id)) + body


def _seeds() -> Iterator[bytes]:
    association = SERVICES.association()
    for interface in SERVICES.interfaces(association):
        body = dcerpc.BIND_BODY.pack(BindBody(4280, 4280, 0)) + b"\1\0\0\0"
        body += CONTEXT_ITEM.pack(ContextItem(0, 1, 0, interface.uuid, interface.version, 0)) + NDR
        for opnum in interface.operations:
            call = dcerpc.REQUEST_BODY.pack(RequestBody(64, 0, opnum)) + bytes(64)
            yield framed.join([_pdu(dcerpc.BIND, body), _pdu(0, call, 2), _pdu(0, call, 3, 1), _pdu(0, call, 3, 2)])


TARGET = Target(_run, _seeds, mutate=framed.mutate)

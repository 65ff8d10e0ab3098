"""The shares of a server, by NetrShareEnum of its Server Service. [MS-SRVS 3.1.4.8]"""

from __future__ import annotations

import dataclasses
import errno
import struct
from typing import Any, NamedTuple, Unpack

from smb3server.client import address as addresses
from smb3server.client import errors
from smb3server.client.connecting import connect
from smb3server.client.options import ConnectKeywords
from smb3server.client.protocol.messages import CREDIT_SIZE
from smb3server.client.protocol.tree import READ_WRITE, SHARE_ALL, RemoteFile, Tree
from smb3server.wire.create import CreateDisposition
from smb3server.wire.ioctl import Fsctl
from smb3server.wire.status import NtStatus, StatusError

MAX_ANSWER = 4 << 20
"""Most bytes of a server's answer: some ten thousand shares."""
_HEADER = struct.Struct("<BBBBIHHI")
"""Version, PTYPE, flags, representation, length of fragment and verifier, call. [C706 12.6.3.1]"""
_STUB = 24
"""Where the stub of a response begins. [C706 12.6.4.10]"""
_BIND_ACK, _RESPONSE, _FAULT, _LAST = 12, 2, 3, 2
_NDR = ("8a885d04-1ceb-11c9-9fe8-08002b104860", "2.0")
_ACCESS_DENIED = 5
_KINDS = {0: "disk", 1: "printer", 2: "device", 3: "pipe"}
_KIND_MASK, _SPECIAL = 0x0FFFFFFF, 0x80000000
"""STYPE_*. [MS-SRVS 2.2.2.4]"""


class ListedShare(NamedTuple):
    """One share of a server."""

    name: str
    kind: str
    """disk, printer, device, pipe, or a number."""
    hidden: bool
    """Whether it is for administration, as IPC$ and C$."""
    remark: str


async def list_shares(url: str, **options: Unpack[ConnectKeywords]) -> list[ListedShare]:
    """Return the shares of the server ``smb://[DOMAIN;]USER@HOST[:PORT]``, sorted by name.

    The options are those of ``connect``. Raises its errors, and ``PermissionError`` if the server does not tell this
    user its shares.
    """
    where = addresses.parse(url)
    if options.get("password") is None and where.password is not None:
        options["password"] = where.password
    pipes = dataclasses.replace(where, share="IPC$", path="", password=None)
    async with connect(str(pipes), **options) as share:
        with errors.named(str(dataclasses.replace(where, share="", path=""))):
            try:
                stub = await share.link.once(lambda tree: _ask(tree, where.host))
            except StatusError as error:
                raise errors.of(error, str(pipes), reason="the server does not tell its shares") from error
        return _listed(stub, str(pipes))


async def _ask(tree: Tree, host: str) -> bytes:
    """Bind to the Server Service, ask for all shares, and return the answer's stub."""
    # Only who asks for shares pays for the import.
    from impacket.dcerpc.v5 import rpcrt, srvs
    from impacket.dcerpc.v5.dtypes import NULL
    from impacket.uuid import uuidtup_to_bin

    pipe = await tree.create("srvsvc", READ_WRITE, CreateDisposition.OPEN, share=SHARE_ALL)
    try:
        item = rpcrt.CtxItem()
        item["AbstractSyntax"], item["TransferSyntax"] = srvs.MSRPC_UUID_SRVS, uuidtup_to_bin(_NDR)
        item["TransItems"] = 1
        bind = rpcrt.MSRPCBind()
        bind.addCtxItem(item)
        head = rpcrt.MSRPCHeader()
        head["type"], head["pduData"] = rpcrt.MSRPC_BIND, bind.getData()
        await _call(tree, pipe, head.get_packet(), _BIND_ACK)
        asked = srvs.NetrShareEnum()
        asked["ServerName"], asked["PreferedMaximumLength"], asked["ResumeHandle"] = f"\\\\{host}\0", MAX_ANSWER, NULL
        asked["InfoStruct"]["Level"] = asked["InfoStruct"]["ShareInfo"]["tag"] = 1
        asked["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"] = NULL
        request = rpcrt.MSRPCRequestHeader()
        request["op_num"], request["pduData"] = asked.opnum, asked.getData()
        return await _call(tree, pipe, request.get_packet(), _RESPONSE)
    finally:
        if tree.client.closed is None:
            await tree.close(pipe)


async def _call(tree: Tree, pipe: RemoteFile, packet: bytes, expected: int) -> bytes:
    """Send a PDU through the pipe, and return the stubs of all fragments of its answer."""
    accept = (NtStatus.SUCCESS, NtStatus.BUFFER_OVERFLOW)
    data = bytearray(await tree.ioctl(Fsctl.PIPE_TRANSCEIVE, packet, pipe, accept=accept))
    stub, at = bytearray(), 0
    while True:
        while len(data) < at + _HEADER.size or len(data) < at + _HEADER.unpack_from(data, at)[5]:
            more = await tree.read(pipe, 0, CREDIT_SIZE)
            if not more or len(data) + len(more) > MAX_ANSWER:
                raise errors.make(errno.EPROTO, reason="the server's answer by RPC has no end")
            data += more
        _, _, kind, flags, _, length, _, _ = _HEADER.unpack_from(data, at)
        if kind == _FAULT or kind != expected or length < _STUB:
            raise errors.make(errno.EOPNOTSUPP, reason=f"the server refuses the question for its shares (PDU {kind})")
        stub += data[at + _STUB : at + length]
        at += length
        if flags & _LAST:
            return bytes(stub)


def _listed(stub: bytes, where: str) -> list[ListedShare]:
    from impacket.dcerpc.v5 import srvs

    try:
        answer: Any = srvs.NetrShareEnumResponse(stub)
        status = int(answer["ErrorCode"])
        buffer = answer["InfoStruct"]["ShareInfo"]["Level1"]["Buffer"] if not status else ()
        found = [_share(entry) for entry in buffer or ()]
    except Exception as error:
        # The decoder's errors are of many kinds, and the answer may be anybody's.
        raise errors.make(errno.EPROTO, where, reason=f"the server's list of shares cannot be read: {error}") from error
    if status:
        number = errno.EACCES if status == _ACCESS_DENIED else errno.EIO
        raise errors.make(number, where, reason=f"the server does not tell its shares (error {status})")
    return sorted(found)


def _share(entry: Any) -> ListedShare:
    kind = int(entry["shi1_type"])
    name, remark = (str(entry[field]).rstrip("\0") for field in ("shi1_netname", "shi1_remark"))
    known = _KINDS.get(kind & _KIND_MASK, str(kind & _KIND_MASK))
    return ListedShare(name, known, bool(kind & _SPECIAL), remark)

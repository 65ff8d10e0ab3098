"""What a connection has negotiated, as its NEGOTIATE messages say. [MS-SMB2 2.2.3, 2.2.4]"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from smb3server.crypto import preauth
from smb3server.crypto.algorithms import Cipher, SigningAlgorithm
from smb3server.lab.pcap import rules
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.smb2 import HEADER_SIZE, Smb2Message
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts

SMB_2_0_2, SMB_2_1, SMB_2_ANY, SMB_3_0, SMB_3_1_1 = 0x0202, 0x0210, 0x02FF, 0x0300, 0x0311
_SIGNING_REQUIRED = 2
_LARGE_MTU = 4
_CONTEXT_ENCRYPTION, _CONTEXT_RDMA_TRANSFORM, _CONTEXT_SIGNING = 2, 7, 8


@dataclass
class Negotiated:
    """The outcome of NEGOTIATE."""

    dialect: int = 0
    """0 if the capture does not have it."""
    server: str = ""
    """ServerGuid."""
    signing_required: bool = False
    """Whether client or server requires signatures."""
    multi_credit: bool = False
    max_read: int = 0
    """0 if not known, as for ``max_write``."""
    max_write: int = 0
    cipher: int = Cipher.NONE
    signing: int = SigningAlgorithm.HMAC_SHA256
    rdma_transforms: tuple[int, ...] = ()
    whole: bool = False
    """Whether all of the server's message was captured."""
    preauth: bytes = preauth.INITIAL_HASH
    """Connection.PreauthIntegrityHashValue. [MS-SMB2 3.3.5.4]"""
    offered: tuple[int, ...] = ()
    """Dialects that the client offers; none if it began with SMB1."""

    def request(self, message: UpperMessage, part: Smb2Message) -> None:
        """Note what the client offers."""
        fields = part.fields("<HHHHI16x", 0)
        if fields is None:
            return
        _, count, mode, _, _ = fields
        self.offered = part.fields(f"<{count}H", 36) or ()
        self.signing_required |= bool(mode & _SIGNING_REQUIRED)
        self.preauth = preauth.extend(preauth.INITIAL_HASH, (message.data,))

    def response(self, message: UpperMessage, part: Smb2Message, verdicts: Verdicts) -> None:
        """Note what the server chooses."""
        fields = part.fields("<HHHH16xIIII", 0)
        if fields is None or part.status:
            return
        _, mode, dialect, count, capabilities, _, self.max_read, self.max_write = fields
        self.server = part.bytes_at(8, 16).hex()
        if self.offered:
            verdicts.check(
                rules.SMB2_DIALECT,
                dialect in self.offered,
                message.number,
                Direction.TO_CLIENT,
                "dialect {:#06x} of {}",
                dialect,
                [hex(one) for one in self.offered],
            )
        self.whole = part.known == len(part.data)
        self.signing_required |= bool(mode & _SIGNING_REQUIRED)
        self.multi_credit = dialect not in (SMB_2_0_2, SMB_2_ANY) and bool(capabilities & _LARGE_MTU)
        if dialect == SMB_2_ANY:
            return  # The client negotiates again.
        self.dialect = dialect
        if dialect >= SMB_3_0:
            self.signing, self.cipher = SigningAlgorithm.AES_CMAC, Cipher.AES_128_CCM
        if dialect >= SMB_3_1_1:
            self.cipher = Cipher.NONE
            self._contexts(part, count)
            self.preauth = preauth.extend(self.preauth, (message.data,))

    def _contexts(self, part: Smb2Message, count: int) -> None:
        """Read the negotiate contexts of the response. [MS-SMB2 2.2.4.1]"""
        fields = part.fields("<I", 60)
        at = fields[0] - HEADER_SIZE if fields else 0
        for _ in range(count):
            header = part.fields("<HH", at) if at > 0 else None
            if header is None:
                return
            kind, length = header
            data = part.bytes_at(at + 8, length)
            at += 8 + (length + 7 & ~7)
            if len(data) < 4:
                continue
            (chosen,) = struct.unpack_from("<H", data, 2)
            if kind == _CONTEXT_ENCRYPTION:
                self.cipher = chosen
            elif kind == _CONTEXT_SIGNING:
                self.signing = chosen
            elif kind == _CONTEXT_RDMA_TRANSFORM:
                self.rdma_transforms = struct.unpack_from(f"<{min((len(data) - 8) // 2, data[0])}H", data, 8)

"""What a connection has negotiated, as its NEGOTIATE messages say. [MS-SMB2 2.2.3, 2.2.4]"""

from __future__ import annotations

import struct
from collections.abc import Iterator
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
_CONTEXT_ENCRYPTION, _CONTEXT_COMPRESSION, _CONTEXT_RDMA_TRANSFORM, _CONTEXT_SIGNING = 2, 3, 7, 8
_CHAINED = 1


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
    max_transact: int = 0
    cipher: int = Cipher.NONE
    signing: int = SigningAlgorithm.HMAC_SHA256
    rdma_transforms: tuple[int, ...] = ()
    compression: tuple[int, ...] | None = None
    """Algorithms that messages may be compressed with. None: not known."""
    chained: bool = False
    """Whether compressed messages may be chains."""
    offered_compression: tuple[int, ...] = ()
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
        if SMB_3_1_1 in self.offered:
            at, contexts = part.fields("<IH", 28) or (0, 0)
            for kind, data in _contexts(part, at - HEADER_SIZE, contexts):
                if kind == _CONTEXT_COMPRESSION:
                    self.offered_compression = _numbers(data)

    def response(self, message: UpperMessage, part: Smb2Message, verdicts: Verdicts) -> None:
        """Note what the server chooses."""
        fields = part.fields("<HHHH16xIIII", 0)
        if fields is None or part.status:
            return
        _, mode, dialect, count, capabilities, self.max_transact, self.max_read, self.max_write = fields
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
            self._choices(message, part, count, verdicts)
            self.preauth = preauth.extend(self.preauth, (message.data,))

    def _choices(self, message: UpperMessage, part: Smb2Message, count: int, verdicts: Verdicts) -> None:
        """Read the negotiate contexts of the response. [MS-SMB2 2.2.4.1]"""
        fields = part.fields("<I", 60)
        if self.whole:
            self.compression = ()
        for kind, data in _contexts(part, fields[0] - HEADER_SIZE if fields else 0, count):
            (chosen,) = struct.unpack_from("<H", data, 2)
            if kind == _CONTEXT_ENCRYPTION:
                self.cipher = chosen
            elif kind == _CONTEXT_SIGNING:
                self.signing = chosen
            elif kind == _CONTEXT_RDMA_TRANSFORM:
                self.rdma_transforms = _numbers(data)
            elif kind == _CONTEXT_COMPRESSION:
                self._choose_compression(message, data, verdicts)

    def _choose_compression(self, message: UpperMessage, data: bytes, verdicts: Verdicts) -> None:
        """Take the server's choice. NONE alone says that it has nothing of what was offered. [MS-SMB2 3.3.5.4]"""
        chosen, offered = _numbers(data), self.offered_compression
        self.chained = bool(int.from_bytes(data[4:8], "little") & _CHAINED)
        self.compression = tuple(number for number in chosen if number)
        if self.offered:
            kept = chosen == (0,) or (0 < len(chosen) == len(set(chosen)) and set(chosen) <= set(offered))
            text = "compression {} of {}"
            way = Direction.TO_CLIENT
            verdicts.check(rules.COMPRESSION_CHOICE, bool(offered) and kept, message.number, way, text, chosen, offered)


def _contexts(part: Smb2Message, at: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield type and data of the negotiate contexts from ``at`` on in the body, as far as they were captured."""
    for _ in range(count):
        header = part.fields("<HH", at) if at > 0 else None
        if header is None:
            return
        kind, length = header
        data = part.bytes_at(at + 8, length)
        at += 8 + (length + 7 & ~7)
        if len(data) >= 4:
            yield kind, data


def _numbers(data: bytes) -> tuple[int, ...]:
    """Return the list behind the fixed part of the contexts about compression and RDMA transforms: a count, two bytes
    and four."""
    count = int.from_bytes(data[:2], "little")
    return struct.unpack_from(f"<{max(0, min((len(data) - 8) // 2, count))}H", data, 8) if len(data) >= 8 else ()

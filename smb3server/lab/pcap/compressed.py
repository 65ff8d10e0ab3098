"""Compressed messages of one connection: judged and decompressed. [MS-SMB2 2.2.42, 3.1.4.4, 3.1.5.3]"""

from __future__ import annotations

import struct

from smb3server.compression import codecs
from smb3server.lab.pcap import rules
from smb3server.lab.pcap.dialect import Negotiated
from smb3server.lab.pcap.direct_tcp import UpperMessage
from smb3server.lab.pcap.rules import Rule
from smb3server.lab.pcap.verdicts import Verdicts

_UNCHAINED = struct.Struct("<4sIHHI")
"""ProtocolId, OriginalCompressedSegmentSize, CompressionAlgorithm, Flags, Offset."""
_CHAINED_START = 8
_PAYLOAD = struct.Struct("<HHI")
"""CompressionAlgorithm, Flags, Length."""
_PATTERN = struct.Struct("<BBHI")
"""Pattern, Reserved1, Reserved2, Repetitions."""
_CHAINED = 1
_NONE, _PATTERN_V1 = 0, 4
_OVERHEAD = 256 + _UNCHAINED.size
"""Bytes by which a message may exceed the largest data. [MS-SMB2 3.2.5.1.1.2, 3.3.5.2.1.2]"""
_MOST = 1 << 24
"""Bytes of a message that is read at all: those of the longest frame over TCP."""


class _Broken(Exception):
    """A message breaks a rule, and what follows in it cannot be read."""

    def __init__(self, rule: Rule, text: str) -> None:
        super().__init__(text)
        self.rule = rule


class Compressed:
    """Judges the compressed messages of one connection."""

    def __init__(self, negotiated: Negotiated, verdicts: Verdicts) -> None:
        self._negotiated = negotiated
        self._verdicts = verdicts

    def expand(self, message: UpperMessage) -> bytes | None:
        """Return the message that was compressed. None: it was not captured whole, or breaks a rule."""
        check, number, way = self._verdicts.check, message.number, message.direction
        if message.known >= 0:
            self._verdicts.unjudged(number, "a compressed message is not captured whole")
            return None
        try:
            plain = self._expand(message.data)
        except _Broken as broken:
            check(broken.rule, False, number, way, "{}", broken)
            return None
        for rule in (rules.COMPRESSION, rules.COMPRESSION_AGREED, rules.COMPRESSION_SIZE, rules.DECOMPRESSION):
            check(rule, True, number, way, "")
        return plain

    def read(self, data: bytes) -> bytes | None:
        """Return the same without a verdict."""
        try:
            return self._expand(data)
        except _Broken:
            return None

    def _expand(self, data: bytes) -> bytes:
        if len(data) < _UNCHAINED.size:
            raise _Broken(rules.COMPRESSION, f"{len(data)} bytes are no header")
        _, original, algorithm, flags, offset = _UNCHAINED.unpack_from(data)
        if flags not in (0, _CHAINED):
            raise _Broken(rules.COMPRESSION, f"Flags {flags:#x}")
        chained, known = flags == _CHAINED, self._negotiated.compression
        if known is not None and not known:
            raise _Broken(rules.COMPRESSION_AGREED, "compressed, and compression was not negotiated")
        if known is not None and chained and not self._negotiated.chained:
            raise _Broken(rules.COMPRESSION_AGREED, "a chain, and chains were not negotiated")
        if chained:
            self._check_size(original)
            plain = self._chain(memoryview(data), original)
        else:
            if offset > len(data) - _UNCHAINED.size:
                raise _Broken(rules.COMPRESSION, f"Offset {offset} in {len(data) - _UNCHAINED.size} bytes")
            self._check_size(original)
            start = _UNCHAINED.size + offset
            if algorithm in (_NONE, _PATTERN_V1):
                raise _Broken(rules.COMPRESSION, f"algorithm {algorithm} without a chain")
            plain = data[_UNCHAINED.size : start] + self._decompress(algorithm, memoryview(data)[start:], original)
        if plain[:4] != b"\xfeSMB":
            raise _Broken(rules.DECOMPRESSION, f"decompressed, it begins with {plain[:4]!r}")
        return plain

    def _check_size(self, original: int) -> None:
        sizes = self._negotiated
        limit = _OVERHEAD + max(sizes.max_read, sizes.max_write, sizes.max_transact) if sizes.max_read else _MOST
        if original > limit:
            text = f"OriginalCompressedSegmentSize {original}, {limit} are allowed"
            raise _Broken(rules.COMPRESSION_SIZE, text)

    def _chain(self, data: memoryview, original: int) -> bytes:
        """Decompress the payloads of a chain. [MS-SMB2 3.1.5.3]"""
        found: list[bytes] = []
        at, room = _CHAINED_START, original
        while at < len(data):
            if len(data) - at < _PAYLOAD.size:
                raise _Broken(rules.COMPRESSION, "the chain ends in the middle of a header")
            algorithm, flags, length = _PAYLOAD.unpack_from(data, at)
            if flags != (0 if found else _CHAINED):
                raise _Broken(rules.COMPRESSION, f"payload {len(found) + 1} has Flags {flags:#x}")
            at += _PAYLOAD.size
            if length > len(data) - at:
                raise _Broken(rules.COMPRESSION, f"payload of {length} bytes in {len(data) - at}")
            found.append(self._payload(algorithm, data[at : at + length], room))
            at, room = at + length, room - len(found[-1])
        if room:
            text = f"OriginalCompressedSegmentSize {original}, and the chain has {original - room} bytes"
            raise _Broken(rules.COMPRESSION_SIZE, text)
        return b"".join(found)

    def _payload(self, algorithm: int, payload: memoryview, room: int) -> bytes:
        """Decompress a payload, which has at most ``room`` bytes."""
        if algorithm == _NONE:
            size = len(payload)
        elif algorithm == _PATTERN_V1:
            if len(payload) != _PATTERN.size:
                raise _Broken(rules.COMPRESSION, f"pattern of {len(payload)} bytes")
            pattern, _, _, size = _PATTERN.unpack(payload)
        elif len(payload) < 4:
            raise _Broken(rules.COMPRESSION, "payload without OriginalPayloadSize")
        else:
            size = int.from_bytes(payload[:4], "little")
        if size > room:
            text = f"payload of {size} bytes, and {room} are left of OriginalCompressedSegmentSize"
            raise _Broken(rules.COMPRESSION_SIZE, text)
        if algorithm == _NONE:
            return bytes(payload)
        if algorithm == _PATTERN_V1:
            self._check_agreed(algorithm)
            return bytes((pattern,)) * size
        return self._decompress(algorithm, payload[4:], size)

    def _check_agreed(self, algorithm: int) -> None:
        known = self._negotiated.compression
        if (known is not None and algorithm not in known) or algorithm not in codecs.QUICK:
            raise _Broken(rules.COMPRESSION_AGREED, f"compressed by algorithm {algorithm}, which was not negotiated")

    def _decompress(self, algorithm: int, data: memoryview, size: int) -> bytes:
        self._check_agreed(algorithm)
        plain = bytearray(size)
        if not codecs.decompress(algorithm, data, memoryview(plain)):
            text = f"{len(data)} bytes of algorithm {algorithm} are malformed, or not {size} bytes"
            raise _Broken(rules.DECOMPRESSION, text)
        return bytes(plain)

"""The SPNEGO tokens that an acceptor receives and sends, in DER. [RFC 4178 4.2, X.690 8]

Tokens are decoded in one pass, without a tree of objects. Decoding raises ``ValueError`` for malformed DER or another
token. The sender is not authenticated yet, so the size of every part is bounded, and the work is linear in the token's
size.
"""

from __future__ import annotations

from typing import NamedTuple

ACCEPT_COMPLETED, ACCEPT_INCOMPLETE, REJECT, REQUEST_MIC = range(4)
"""Values of NegState. [RFC 4178 4.2.2]"""

SPNEGO = bytes.fromhex("06062b0601050502")
"""1.3.6.1.5.5.2, including tag and length."""
NTLM = bytes.fromhex("060a2b06010401823702020a")
"""1.3.6.1.4.1.311.2.2.10."""
KERBEROS = bytes.fromhex("06092a864886f712010202")
"""1.2.840.113554.1.2.2."""
MS_KERBEROS = bytes.fromhex("06092a864882f712010202")
"""1.2.840.48018.1.2.2: the same mechanism under the number that Windows 2000 gave it (MS-SPNG 1.9)."""

MAX_MECHANISMS = 16
"""Mechanisms that a client may offer. Windows offers five."""
MAX_OID = 32
"""Bytes of one object identifier."""
MAX_MECHANISM_LIST = 1024
"""Bytes of the list of mechanisms."""

_GSS, _SEQUENCE, _OCTETS, _ENUMERATED, _OID, _GENERAL_STRING = 0x60, 0x30, 0x04, 0x0A, 0x06, 0x1B
_INIT, _RESP = 0xA0, 0xA1
_MAX_LENGTH_BYTES = 4


class Init(NamedTuple):
    """NegTokenInit, the client's first token. [RFC 4178 4.2.1]"""

    mechanisms: bytes
    """MechTypeList as it was sent. The mechListMIC covers these bytes."""
    offered: tuple[bytes, ...]
    """Object identifiers in the client's order, including tag and length. Never empty."""
    token: bytes
    """The token for the client's first choice. Empty means that it sent none."""
    mic: bytes
    """The mechListMIC, which clients normally send later. Empty means that it sent none."""

    @property
    def first(self) -> bytes:
        """The client's first choice."""
        return self.offered[0]


class Resp(NamedTuple):
    """NegTokenResp, a later token. None means that the field is absent. [RFC 4178 4.2.2]"""

    state: int | None
    mechanism: bytes | None
    token: bytes | None
    mic: bytes | None


def _element(data: bytes, at: int, end: int, tag: int = -1) -> tuple[int, int]:
    """Return where the content of the element at ``at`` begins and ends. -1 accepts any tag."""
    if at + 2 > end:
        raise ValueError("DER element cut short")
    if tag >= 0 and data[at] != tag:
        raise ValueError(f"DER tag {data[at]:#x}, not {tag:#x}")
    length = data[at + 1]
    start = at + 2
    if length >= 0x80:
        count = length & 0x7F
        if not 1 <= count <= _MAX_LENGTH_BYTES or start + count > end:
            raise ValueError("bad DER length")
        length = int.from_bytes(data[start : start + count], "big")
        start += count
    if length > end - start:
        raise ValueError("DER element exceeds what it is in")
    return start, start + length


def _fields(data: bytes, at: int, end: int) -> dict[int, tuple[int, int]]:
    """Return the places of the context-specific elements of the sequence at ``at``, by tag. No tag may occur twice."""
    at, end = _element(data, at, end, _SEQUENCE)
    found: dict[int, tuple[int, int]] = {}
    while at < end:
        start, stop = _element(data, at, end)
        tag = data[at]
        if tag in found:
            raise ValueError(f"DER tag {tag:#x} twice")
        found[tag] = start, stop
        at = stop
    return found


def _octets(data: bytes, place: tuple[int, int] | None) -> bytes | None:
    if place is None:
        return None
    start, stop = _element(data, *place, _OCTETS)
    return data[start:stop]


def parse_init(token: bytes) -> Init:
    """Decode the client's first token. Raises ``ValueError``."""
    at, end = _element(token, 0, len(token), _GSS)
    if token[at : at + len(SPNEGO)] != SPNEGO:
        raise ValueError("not a SPNEGO token")
    fields = _fields(token, *_element(token, at + len(SPNEGO), end, _INIT))
    if 0xA0 not in fields:
        raise ValueError("no mechanisms")
    place = fields[0xA0]
    start, stop = _element(token, *place, _SEQUENCE)
    offered = _mechanisms(token, start, stop)
    # NegTokenInit2 (MS-SPNG 2.2.1) has hints in [3] and the mechListMIC in [4].
    hints = 0xA3 in fields and token[fields[0xA3][0] : fields[0xA3][0] + 1] == bytes((_SEQUENCE,))
    mic = _octets(token, fields.get(0xA4 if hints else 0xA3)) or b""
    return Init(token[place[0] : stop], offered, _octets(token, fields.get(0xA2)) or b"", mic)


def _mechanisms(token: bytes, at: int, end: int) -> tuple[bytes, ...]:
    """Split a MechTypeList into its object identifiers. They are compared in encoded form and never decoded."""
    if end - at > MAX_MECHANISM_LIST:
        raise ValueError("list of mechanisms too long")
    offered: list[bytes] = []
    while at < end:
        start, stop = _element(token, at, end, _OID)
        if not 0 < stop - start <= MAX_OID:
            raise ValueError("object identifier of a wrong size")
        if len(offered) == MAX_MECHANISMS:
            raise ValueError("too many mechanisms")
        offered.append(token[at:stop])
        at = stop
    if not offered:
        raise ValueError("empty list of mechanisms")
    return tuple(offered)


def gss_mechanism(token: bytes) -> bytes:
    """Return the mechanism that an initial GSS token names, including tag and length. Raises ``ValueError``.
    [RFC 2743 3.1]"""
    at, end = _element(token, 0, len(token), _GSS)
    if end != len(token):
        raise ValueError("bytes behind a GSS token")
    start, stop = _element(token, at, end, _OID)
    if not 0 < stop - start <= MAX_OID:
        raise ValueError("object identifier of a wrong size")
    return token[at:stop]


def parse_resp(token: bytes) -> Resp:
    """Decode a later token of the client. Raises ``ValueError``."""
    fields = _fields(token, *_element(token, 0, len(token), _RESP))
    state = mechanism = None
    if 0xA0 in fields:
        start, stop = _element(token, *fields[0xA0], _ENUMERATED)
        if stop - start != 1 or token[start] > REQUEST_MIC:
            raise ValueError("unknown negState")
        state = token[start]
    if 0xA1 in fields:
        first, last = fields[0xA1]
        start, stop = _element(token, first, last, _OID)
        if not 0 < stop - start <= MAX_OID:
            raise ValueError("object identifier of a wrong size")
        mechanism = token[first:stop]
    return Resp(state, mechanism, _octets(token, fields.get(0xA2)), _octets(token, fields.get(0xA3)))


def _tlv(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size, "big") + content


def pack_resp(resp: Resp) -> bytes:
    """Encode a NegTokenResp."""
    content = b""
    if resp.state is not None:
        content += bytes((0xA0, 3, _ENUMERATED, 1, resp.state))
    if resp.mechanism is not None:
        content += _tlv(0xA1, resp.mechanism)
    if resp.token is not None:
        content += _tlv(0xA2, _tlv(_OCTETS, resp.token))
    if resp.mic is not None:
        content += _tlv(0xA3, _tlv(_OCTETS, resp.mic))
    return _tlv(_RESP, _tlv(_SEQUENCE, content))


def mechanism_list(mechanisms: bytes) -> bytes:
    """Return a MechTypeList, which the mechListMIC covers. [RFC 4178 4.1]"""
    return _tlv(_SEQUENCE, mechanisms)


def pack_hint(kerberos: bool, ntlm: bool) -> bytes:
    """Encode the NegTokenInit2 of a negotiate response: the mechanisms that a client may choose. [MS-SPNG 2.2.1]"""
    mechanisms = (MS_KERBEROS + KERBEROS if kerberos else b"") + (NTLM if ntlm else b"")
    hint = _tlv(0xA0, _tlv(_GENERAL_STRING, b"not_defined_in_RFC4178@please_ignore"))
    content = _tlv(0xA0, mechanism_list(mechanisms)) + _tlv(0xA3, _tlv(_SEQUENCE, hint))
    return _tlv(_GSS, SPNEGO + _tlv(_INIT, _tlv(_SEQUENCE, content)))


def pack_init(mechanism: bytes, token: bytes) -> bytes:
    """Encode a NegTokenInit, within its GSS header, that offers one mechanism with its first token. [RFC 4178 4.2.1]"""
    content = _tlv(0xA0, mechanism_list(mechanism)) + _tlv(0xA2, _tlv(_OCTETS, token))
    return _tlv(_GSS, SPNEGO + _tlv(_INIT, _tlv(_SEQUENCE, content)))

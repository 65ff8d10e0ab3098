"""A ticket with the PAC that a controller of Samba made for AzUser01 of CONTOSO.COM. Domain and keys are gone."""

from __future__ import annotations

from pathlib import Path

from impacket.krb5 import crypto
from impacket.krb5.asn1 import AD_IF_RELEVANT
from pyasn1.codec.der import encoder

from smb3server.auth.tickets import IF_RELEVANT, WIN2K_PAC, Ticket
from smb3server.domain import pac

RECORDED = (Path(__file__).parent / "recorded_azuser01.pac").read_bytes()
KEY = bytes.fromhex("f5abd442271ce9cf6194f7e0b4ec5c9991e7463a7c98771fc6e41199ef9d35fd")
"""The service's, with which the PAC is signed."""
BUFFERS = pac._buffers(RECORDED)


def ticket(data: bytes | None = RECORDED, client: str = "AzUser01", key: bytes = KEY, key_type: int = 18) -> Ticket:
    """The ticket that a PAC is in."""
    found: tuple[tuple[int, bytes], ...] = ()
    if data is not None:
        inner = AD_IF_RELEVANT()
        inner[0]["ad-type"], inner[0]["ad-data"] = WIN2K_PAC, data
        found = ((IF_RELEVANT, encoder.encode(inner)),)
    return Ticket(client, "CONTOSO.COM", 1795719498, key_type, key, found)


def signed(data: bytes | bytearray) -> bytes:
    """The PAC with a right signature of the server: what checks must find that is wrong otherwise."""
    made = bytearray(data)
    buffers = pac._buffers(bytes(made))
    own, controller = (pac._signature(bytes(made), buffers, kind) for kind in (pac.SERVER_CHECKSUM, pac.KDC_CHECKSUM))
    for signature in (own, controller):
        made[signature.start : signature.start + 12] = bytes(12)
    right = crypto.make_checksum(16, crypto.Key(18, KEY), 17, bytes(made))
    made[own.start : own.start + 12] = right
    made[controller.start : controller.start + 12] = controller.value
    return bytes(made)

"""RDMA transforms: data that moves by RDMA encrypted or signed. [MS-SMB2 2.2.43, 3.3.5.12, 3.3.5.13, 3.2.5.11]

The chain is decoded by the codec of this project.
"""

from __future__ import annotations

from smb3server.crypto.signing import Signer
from smb3server.lab.pcap import rules
from smb3server.lab.pcap.dialect import Negotiated
from smb3server.lab.pcap.memory import Offer
from smb3server.lab.pcap.sessions import Session
from smb3server.lab.pcap.smb2 import (
    CHANNEL_RDMA_TRANSFORM,
    READ,
    WRITE,
    Descriptor,
    Smb2Message,
)
from smb3server.lab.pcap.tcp import Direction
from smb3server.lab.pcap.verdicts import Verdicts
from smb3server.wire.rdma_transform import CryptoTransform, RdmaTransformId, parse_transforms, transformed_buffers
from smbdirect.errors import DecodeError

_TRANSFORMED = 1
"""SMB2_READFLAG_RESPONSE_RDMA_TRANSFORM. [MS-SMB2 2.2.20]"""
_READ_FLAGS_AT = 12
_ENCRYPTION, _SIGNING = RdmaTransformId.ENCRYPTION, RdmaTransformId.SIGNING


class Transforms:
    """Judges the transforms of one connection."""

    def __init__(self, negotiated: Negotiated, verdicts: Verdicts) -> None:
        self._negotiated = negotiated
        self._verdicts = verdicts

    def descriptors(self, number: int, part: Smb2Message) -> tuple[int, tuple[Descriptor, ...], CryptoTransform] | None:
        """Return channel, descriptors and transform of a WRITE request whose Channel is RDMA_TRANSFORM."""
        fields = part.fields("<IIHH", 32) if part.command == WRITE else None
        if fields is None or fields[0] != CHANNEL_RDMA_TRANSFORM:
            return None
        check, way = self._verdicts.check, Direction.TO_SERVER
        try:
            found = transformed_buffers(memoryview(part.data[: part.known]), fields[2], fields[3])
        except DecodeError as error:
            if part.known < len(part.data):
                self._verdicts.unjudged(number, "an RDMA transform is not captured whole")
            else:
                check(rules.TRANSFORM_CHAIN, False, number, way, "{}", error)
            return None
        self._judge_type(number, found.crypto, way)
        places = tuple(Descriptor(one.offset, one.token, one.length) for one in found.buffers)
        return found.channel, places, found.crypto

    def of_response(self, number: int, part: Smb2Message) -> CryptoTransform | None:
        """Return the transform of a READ response."""
        fields = part.fields("<I", _READ_FLAGS_AT)
        if part.command != READ or fields is None or not fields[0] & _TRANSFORMED:
            return None
        try:
            _, crypto, _ = parse_transforms(memoryview(part.buffer()))
        except DecodeError as error:
            if part.known < len(part.data):
                self._verdicts.unjudged(number, "an RDMA transform is not captured whole")
            else:
                self._verdicts.check(rules.TRANSFORM_CHAIN, False, number, Direction.TO_CLIENT, "{}", error)
            return None
        self._judge_type(number, crypto, Direction.TO_CLIENT)
        return crypto

    def _judge_type(self, number: int, crypto: CryptoTransform, way: Direction) -> None:
        if not self._negotiated.whole:
            return
        kept = crypto.transform_type in self._negotiated.rdma_transforms
        text = "{} was not negotiated"
        self._verdicts.check(rules.TRANSFORM_CHAIN, kept, number, way, text, crypto.transform_type.name)

    def judge_presence(
        self, number: int, crypto: CryptoTransform | None, signed: bool, encrypted: bool, way: Direction
    ) -> None:
        """Judge whether data that moves by RDMA is protected as its messages are."""
        found = None if crypto is None else crypto.transform_type
        if not self._negotiated.whole:
            return
        if encrypted:
            wanted = _ENCRYPTION
        elif signed and _SIGNING in self._negotiated.rdma_transforms:
            wanted = _SIGNING
        else:
            return
        text = "data by RDMA has the transform {}, {} is needed"
        shown = "none" if found is None else found.name
        self._verdicts.check(rules.TRANSFORM_MISSING, found is wanted, number, way, text, shown, wanted.name)

    def judge_payload(
        self,
        number: int,
        crypto: CryptoTransform,
        offer: Offer,
        size: int,
        session: Session,
        signer: Signer | None,
        way: Direction,
    ) -> None:
        """Judge tag or signature of the ``size`` bytes that moved in the direction ``way``."""
        check = self._verdicts.check
        if crypto.transform_type is _ENCRYPTION:
            fresh = session.fresh_nonce(way, crypto.nonce)
            check(rules.NONCE, fresh, number, way, "nonce {} of RDMA data was used before", crypto.nonce.hex())
        payload = offer.payload(size)
        cipher = session.ciphers.get(way)
        if payload is None:
            self._verdicts.unjudged(number, "RDMA data is not captured whole")
        elif (cipher if crypto.transform_type is _ENCRYPTION else signer) is None:
            self._verdicts.unjudged(number, f"RDMA data of session {session.session_id:#x}: no key", True)
        else:
            view = memoryview(payload)
            if crypto.transform_type is _ENCRYPTION and cipher is not None:
                right = cipher.decrypt_payload(view, crypto.nonce, crypto.signature)
            else:
                right = signer is not None and signer.verify_payload(view, crypto.nonce, crypto.signature)
            text = "{} of {} bytes of RDMA data is wrong"
            check(rules.TRANSFORM_AUTHENTIC, right, number, way, text, crypto.transform_type.name, size)

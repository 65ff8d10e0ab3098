"""Each case about READ and WRITE by RDMA finds a server without the protection, or the duty, that it is about."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import pytest

from smb3server.commands import negotiate, read, write
from smb3server.commands.fsctl import network
from smb3server.crypto.encryption import SessionCipher
from smb3server.crypto.signing import GmacSigner
from smb3server.dispatch import checks, data_channel, fast_lane, rdma_transforms
from smb3server.dispatch.data_channel import RemoteMemory
from smb3server.dispatch.request import Request
from smb3server.lab.conformance.registry import load
from smb3server.lab.conformance.verdict import Verdict
from smb3server.wire.negotiate import ContextType
from smb3server.wire.rdma_transform import pack_capabilities
from smb3server.wire.read_write import Channel, ReadRequest, WriteRequest, parse_read_request
from smb3server.wire.status import NtStatus, StatusError
from smbdirect.codec import Buffer
from smbdirect.errors import DecodeError
from smbdirect.message_transport import RemoteBuffer
from smbdirect.rdma.chain_calls import OnDone
from smbdirect.transport.rdma import Rdma
from smbdirect.transport.smb_direct import SmbDirectTransport
from tests.lab.conformance import results, told

Break = Callable[[pytest.MonkeyPatch], None]
SUITES = ("Smb2OverRdma*", "Smb2MultiChannelOverRdma", "Smb2Rdma*")


def writes_nothing(patch: pytest.MonkeyPatch) -> None:
    """Say that data went by RDMA, and send none."""

    def write_to_peer(self: Rdma, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], done: OnDone | None) -> None:
        if done is not None:
            self._loop.call_soon(done, None)

    patch.setattr(Rdma, "write_to_peer", write_to_peer)


def fetches_nothing(patch: pytest.MonkeyPatch) -> None:
    """Say that data came by RDMA, and take what is in the buffer."""

    def read_from_peer(self: Rdma, remote: Sequence[RemoteBuffer], local: Sequence[memoryview], done: OnDone) -> None:
        self._loop.call_soon(done, None)

    patch.setattr(Rdma, "read_from_peer", read_from_peer)
    # The transforms would find this out.
    patch.setattr(rdma_transforms, "for_write", lambda request, crypto: None)


def refuses_no_channel(patch: pytest.MonkeyPatch) -> None:
    """Take a request whose channel information is wrong for one without."""
    good_write, good = write.memory_for_write, data_channel.described

    def memory_for_write(request: Request, body: WriteRequest) -> RemoteMemory | None:
        try:
            return good_write(request, body)
        except (StatusError, DecodeError):
            return None

    def described(*arguments: object) -> RemoteMemory | None:
        try:
            return good(*arguments)  # type: ignore[arg-type]
        except (StatusError, DecodeError):
            return None

    patch.setattr(write, "memory_for_write", memory_for_write)
    patch.setattr(read, "described", described)


def checks_no_sizes(patch: pytest.MonkeyPatch) -> None:
    """Take only the part of READ and WRITE that fits, and no notice of data in a WRITE by RDMA."""
    good = write._write_from_peer

    def fitting(body: ReadRequest) -> ReadRequest:
        return body._replace(length=min(body.length, 16384))

    def write_from_peer(request: Request, body: WriteRequest, remote: RemoteMemory) -> object:
        body = body._replace(length=0, data_offset=0, remaining_bytes=min(body.remaining_bytes, 16384))
        filled = [one for one in remote.buffers if one.length]
        return good(request, body, remote._replace(buffers=filled))  # type: ignore[arg-type]

    patch.setattr(read, "parse_read_request", lambda message: fitting(parse_read_request(message)))
    patch.setattr(write, "_write_from_peer", write_from_peer)
    patch.setattr(data_channel, "_check_covered", lambda buffers, length: None)
    patch.setattr(checks, "pays_for", lambda charge, payload: True)


def checks_no_protection(patch: pytest.MonkeyPatch) -> None:
    """Store what a WRITE moved, whatever its transform says."""
    patch.setattr(rdma_transforms, "for_write", lambda request, crypto: None)


def protects_nothing(patch: pytest.MonkeyPatch) -> None:
    """Send the data of a READ by RDMA as it is."""
    patch.setattr(rdma_transforms, "for_read", lambda request: None)


def signs_data_as_messages(patch: pytest.MonkeyPatch) -> None:
    """Use the nonce of a message for its data, too."""

    def payload_nonce(self: GmacSigner, message_id: int, from_server: bool) -> bytes:
        return struct.pack("<QI", message_id, from_server)

    patch.setattr(GmacSigner, "payload_nonce", payload_nonce)


def gives_nonces_out_twice(patch: pytest.MonkeyPatch) -> None:
    """Encrypt the response to a READ with the nonce of its data."""
    good = SessionCipher.new_nonce

    def new_nonce(self: SessionCipher) -> bytes:
        nonce = good(self)
        self._nonce -= 1
        return nonce

    patch.setattr(SessionCipher, "new_nonce", new_nonce)


def takes_other_statuses_for_addresses(patch: pytest.MonkeyPatch) -> None:
    """Refuse descriptors that leave the address space, as a server that noticed it too late."""
    good = data_channel._check_covered

    def check_covered(buffers: Sequence[RemoteBuffer], length: int) -> None:
        try:
            good(buffers, length)
        except StatusError:
            raise StatusError(NtStatus.INSUFFICIENT_RESOURCES) from None

    patch.setattr(data_channel, "_check_covered", check_covered)


def uses_nonces_again(patch: pytest.MonkeyPatch) -> None:
    good = SessionCipher.new_nonce
    patch.setattr(SessionCipher, "new_nonce", lambda self: bytes(len(good(self))))


def invalidates_nothing(patch: pytest.MonkeyPatch) -> None:
    good = SmbDirectTransport.send
    patch.setattr(
        SmbDirectTransport, "send", lambda self, segments, token=None, *rest: good(self, segments, None, *rest)
    )


def _with_token(patch: pytest.MonkeyPatch, token: Callable[[RemoteMemory], int | None]) -> None:
    good = data_channel.described

    def described(*arguments: object) -> RemoteMemory | None:
        found = good(*arguments)  # type: ignore[arg-type]
        return found if found is None else found._replace(invalidate=token(found))

    _on_the_general_path(patch)
    for module in (data_channel, read):
        patch.setattr(module, "described", described)


def invalidates_always(patch: pytest.MonkeyPatch) -> None:
    """Invalidate the first token also for SMB2_CHANNEL_RDMA_V1."""
    _with_token(patch, lambda found: found.buffers[0].token)


def invalidates_the_last(patch: pytest.MonkeyPatch) -> None:
    _with_token(patch, lambda found: None if found.invalidate is None else found.buffers[-1].token)


def _on_the_general_path(patch: pytest.MonkeyPatch) -> None:
    """Have no request take the fast lane, which parses for itself."""
    patch.setattr(fast_lane, "SHORT_FORMS", {})


def knows_no_minimum(patch: pytest.MonkeyPatch) -> None:
    _on_the_general_path(patch)
    patch.setattr(read, "parse_read_request", lambda message: parse_read_request(message)._replace(minimum_count=0))


def takes_what_must_be_ignored(patch: pytest.MonkeyPatch) -> None:
    """Use channel information without a channel."""
    _on_the_general_path(patch)
    good_read, good_write = read.parse_read_request, write.parse_write_request

    def parse_read(message: memoryview) -> ReadRequest:
        body = good_read(message)
        return body._replace(channel=body.channel or (Channel.RDMA_V1 if body.remaining_bytes else 0))

    def parse_write(message: memoryview) -> WriteRequest:
        body = good_write(message)
        return body._replace(channel=body.channel or (Channel.RDMA_V1 if body.remaining_bytes else 0))

    patch.setattr(read, "parse_read_request", parse_read)
    patch.setattr(write, "parse_write_request", parse_write)


def uses_one_descriptor(patch: pytest.MonkeyPatch) -> None:
    """Take the first descriptor for all of the memory."""
    good_write, good_read = Rdma.write_to_peer, Rdma.read_from_peer

    def whole(remote: Sequence[RemoteBuffer], local: Sequence[Buffer]) -> list[RemoteBuffer]:
        return [remote[0]._replace(length=sum(map(len, local)))]

    patch.setattr(
        Rdma, "write_to_peer", lambda self, remote, local, done: good_write(self, whole(remote, local), local, done)
    )
    patch.setattr(
        Rdma, "read_from_peer", lambda self, remote, local, done: good_read(self, whole(remote, local), local, done)
    )


def writes_further(patch: pytest.MonkeyPatch) -> None:
    """Write one byte more than asked for."""
    good = Rdma.write_to_peer

    def write_to_peer(self: Rdma, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], done: OnDone | None) -> None:
        *first, last = remote
        good(self, [*first, last._replace(length=last.length + 1)], [*local, b"\0"], done)

    patch.setattr(Rdma, "write_to_peer", write_to_peer)


def uses_all_descriptors(patch: pytest.MonkeyPatch) -> None:
    """Move as many bytes as the descriptors hold, whatever the request needs."""
    good_write, good_read = Rdma.write_to_peer, Rdma.read_from_peer

    def spare(remote: Sequence[RemoteBuffer], local: Sequence[Buffer]) -> memoryview:
        return memoryview(bytearray(sum(one.length for one in remote) - sum(map(len, local))))

    patch.setattr(
        Rdma,
        "write_to_peer",
        lambda self, remote, local, done: good_write(self, remote, [*local, spare(remote, local)], done),
    )
    patch.setattr(
        Rdma,
        "read_from_peer",
        lambda self, remote, local, done: good_read(self, remote, [*local, spare(remote, local)], done),
    )


def says_what_was_asked(patch: pytest.MonkeyPatch) -> None:
    """Write what fits into the descriptors of a READ, and say that everything was written."""
    good = Rdma.write_to_peer

    def write_to_peer(self: Rdma, remote: Sequence[RemoteBuffer], local: Sequence[Buffer], done: OnDone | None) -> None:
        good(self, remote, [memoryview(b"".join(local))[: sum(one.length for one in remote)]], done)

    patch.setattr(Rdma, "write_to_peer", write_to_peer)
    patch.setattr(data_channel, "_check_covered", lambda buffers, length: None)


def lists_no_rdma(patch: pytest.MonkeyPatch) -> None:
    """List all interfaces without RDMA_CAPABLE."""
    good = network.pack_interfaces
    patch.setattr(network, "pack_interfaces", lambda interfaces, rdma, tcp, **rest: good(interfaces, (), tcp, **rest))


def agrees_to_everything(patch: pytest.MonkeyPatch) -> None:
    """Answer a context of RDMA transforms with what it has, and with one more."""

    def negotiate_transforms(connection: object, settings: object, offered: dict[int, memoryview]) -> bytes:
        return pack_capabilities((1, 0x55))

    patch.setattr(negotiate, "_negotiate_transforms", negotiate_transforms)


def answers_without_offer(patch: pytest.MonkeyPatch) -> None:
    """Have a context of RDMA transforms in each response of 3.1.1."""
    good = negotiate._negotiate_contexts

    def negotiate_contexts(*arguments: object) -> list[tuple[int, bytes]]:
        answers = good(*arguments)  # type: ignore[arg-type]
        if ContextType.RDMA_TRANSFORM not in dict(answers):
            answers.append((ContextType.RDMA_TRANSFORM, pack_capabilities((1,))))
        return answers

    patch.setattr(negotiate, "_negotiate_contexts", negotiate_contexts)


def takes_contexts_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(negotiate, "_CONTEXT_TYPES", ())


TRANSFORM = "Smb2OverRdmaChannelTransform_"
RULES, TRANSFORMS, NEGOTIATION = "Smb2RdmaRules_", "Smb2RdmaTransformRules_", "Smb2RdmaTransformNegotiation_"
BROKEN: tuple[tuple[Break, tuple[str, ...]], ...] = (
    (
        writes_nothing,
        (
            "*_Smb2OverRdmaChannel_ReadLargeFile",
            "Smb2OverRdmaChannel_Read*",
            "Smb2OverRdmaChannel_InvalidBufferDescriptor_*",
            f"*{TRANSFORM}*_Read*",
            "Smb2OverRdma_Read_SMB2_CHANNEL_RDMA_V1",
            "*_Smb302_Read_*",
            "*MultipleChannel_*",
            "Smb2Multichannel_*",
            f"{RULES}Read_EndOfFile",
            f"{RULES}Compounded",
            f"{RULES}Read_NoRightToWrite",
            f"{RULES}TokenOfAnotherConnection",
            f"{RULES}OverlappingDescriptors",
            f"{RULES}PartOfRegion",
            f"{TRANSFORMS}Read*",
            f"{TRANSFORMS}ShortRead",
            f"{TRANSFORMS}Invalidate",
        ),
    ),
    (
        fetches_nothing,
        (
            "*_Smb2OverRdmaChannel_WriteLargeFile",
            "Smb2OverRdmaChannel_*Write*",
            f"*{TRANSFORM}*_WriteLargeFile_AES*[CM]",
            f"*{TRANSFORM}*_WriteLargeFile_AES_*MAC",
            f"{TRANSFORM}Encryption_WriteMultipleOperation",
            "Smb2OverRdma_Write_SMB2_CHANNEL_RDMA_V1",
            "*_Smb302_Write_*",
            f"{RULES}Write_NoRightToRead",
            f"{RULES}Write_LastTokenInvalid",
            f"{TRANSFORMS}WriteLargeFile_*",
            f"{TRANSFORMS}SeveralDescriptors",
            f"{TRANSFORMS}ReservedIgnored",
        ),
    ),
    (
        refuses_no_channel,
        (
            "Smb2OverRdma_Smb300_*",
            f"{RULES}Read_Info*",
            f"{RULES}Read_Channel[THU]*",
            f"{RULES}Read_DescriptorCutOff",
            f"{RULES}Read_LengthZero",
            f"{RULES}Write_Info*",
            f"{RULES}Write_Channel[THU]*",
            f"{RULES}Write_DescriptorCutOff",
            f"{RULES}Write_DescriptorsTooShort",
            f"{RULES}Write_RemainingZero",
            f"{RULES}ChannelOverTcp",
            f"{TRANSFORM}*_NoTransformIds_Fails",
            f"{TRANSFORM}*_ZeroTransformCount_Fails",
            f"{TRANSFORM}*Structure_Fails",
            f"{TRANSFORM}*_BufferNotAligned_Fails",
            f"{TRANSFORMS}Info*",
            f"{TRANSFORMS}RemainingZero",
            f"{TRANSFORMS}Descriptors[TEUB]*",
            f"{TRANSFORMS}TwoSigningStructures",
            f"{TRANSFORMS}Transform[UZC]*",
            f"{TRANSFORMS}Channel*",
            f"{TRANSFORMS}CountBeyondInfo",
        ),
    ),
    (
        checks_no_sizes,
        (
            f"{RULES}Read_LengthAboveMaxReadSize",
            f"{RULES}*_OneByteAboveMax*",
            f"{RULES}Write_LengthNotZero",
            f"{RULES}Write_DataOffsetNotZero",
            f"{RULES}Write_RemainingAboveMaxWriteSize",
            f"{RULES}Write_FirstDescriptorEmpty",
            f"{TRANSFORMS}LengthNotZero",
            f"{TRANSFORMS}DataOffsetNotZero",
            f"{TRANSFORMS}RemainingAboveMaxWriteSize",
            f"{TRANSFORMS}FirstDescriptorEmpty",
        ),
    ),
    (
        checks_no_protection,
        (
            f"{TRANSFORM}*NonceLength_*",
            f"{TRANSFORM}*_IncreaseSignatureLength_Fails",
            f"{TRANSFORM}*_InvalidSignature_Fails",
            f"{TRANSFORM}*_FlagsSignedNotSet_Fails",
            f"{TRANSFORM}*_SigningStructure_EncryptionId_Fails",
            f"{TRANSFORMS}EncryptionNotNegotiated",
            f"{TRANSFORMS}RequestNotEncrypted",
            f"{TRANSFORMS}Tag*",
            f"{TRANSFORMS}NonceWrong",
            f"{TRANSFORMS}SignatureShort",
        ),
    ),
    (protects_nothing, (f"*{TRANSFORM}*_Read*", f"{TRANSFORMS}Read*", f"{TRANSFORMS}ShortRead")),
    (uses_nonces_again, (f"{TRANSFORMS}NewNonces",)),
    (gives_nonces_out_twice, (f"{TRANSFORMS}NewNonces", f"{TRANSFORM}Encryption_Read*")),
    (signs_data_as_messages, (f"{TRANSFORMS}NewNonces_AES_GMAC", f"{TRANSFORM}Signing_ReadLargeFile_AES_GMAC")),
    (takes_other_statuses_for_addresses, (f"{RULES}*_DescriptorBeyondAddressSpace",)),
    (invalidates_nothing, ("*_Smb302_*", f"{RULES}InvalidateFirstToken", f"{TRANSFORMS}Invalidate")),
    (invalidates_always, ("Smb2OverRdma_*_SMB2_CHANNEL_RDMA_V1",)),
    (invalidates_the_last, (f"{RULES}InvalidateFirstToken",)),
    (knows_no_minimum, (f"{RULES}Read_MinimumCount",)),
    (takes_what_must_be_ignored, (f"{RULES}*_ChannelNone",)),
    (uses_one_descriptor, ("*BufferDescriptorList", f"{RULES}DescriptorsInOrder")),
    (uses_all_descriptors, (f"{RULES}*_MoreDescriptors",)),
    (says_what_was_asked, (f"{RULES}Read_DescriptorsTooShort",)),
    (writes_further, (f"{RULES}PartOfRegion", f"{RULES}Read_EndOfFile")),
    (lists_no_rdma, ("*MultipleChannel_*", "Smb2Multichannel_*")),
    (agrees_to_everything, (f"{NEGOTIATION}*Common", f"{NEGOTIATION}CountZero", f"{NEGOTIATION}TooShort")),
    (answers_without_offer, (f"{NEGOTIATION}NotOffered",)),
    (takes_contexts_twice, (f"{NEGOTIATION}Twice",)),
)
"""Each broken server, and the names of cases that must find it."""


def matching(patterns: Sequence[str]) -> list[str]:
    """Return the names of the cases that match; each pattern has one at least."""
    names = [name for name, case in load().items() if any(fnmatchcase(case.suite, suite) for suite in SUITES)]
    for pattern in patterns:
        assert any(fnmatchcase(name, pattern) for name in names), f"no case matches {pattern}"
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


@pytest.mark.parametrize(("break_it", "patterns"), BROKEN, ids=lambda each: getattr(each, "__name__", ""))
def test_broken_server(break_it: Break, patterns: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    found = results("loopback", [load()[name] for name in matching(patterns)])
    # A server that fails by itself is not broken in the way that the case is about.
    missed = [each for each in found if each.verdict is not Verdict.FAIL or "INTERNAL_ERROR" in each.reason]
    assert not [told(each) for each in missed]


def test_every_case_finds_a_broken_server() -> None:
    found = {name for _, patterns in BROKEN for name in matching(patterns)}
    assert found == set(matching(["*"]))

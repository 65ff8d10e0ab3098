"""The rules by which captures are judged: what each says, and where the specification says it.

An id is ``layer.subject``. Ids are stable: scripts filter by them.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """One rule of a specification that can be seen kept or broken on the wire."""

    id: str
    section: str
    text: str
    history: bool
    """Whether it depends on earlier messages, so that a loss of the capture can make it look broken."""


_ALONE = frozenset(
    (
        *("mpa.enhanced", "mpa.crc", "ddp.header", "ddp.queue", "rdmap.invalidate-stag"),
        *("ib.packet", "ib.icrc", "ib.size", "smbd.reserved", "smbd.padding"),
        *("smbd.length", "smbd.offset", "smbd.bounds", "smbd.credits-requested", "smbd.empty", "smbd.flags"),
        *("smb2.frame", "smb2.header", "smb2.next-command", "smb2.body", "smb2.buffer", "smb2.direction"),
        *("smb2.related", "smb2.credit-charge", "smb2.signature", "smb2.decryption", "smb2.transform"),
        *("smb2.value", "smb2.reserved", "smb2.negotiate-contexts"),
        *("smb2.compression", "smb2.decompression"),
    )
)
"""Rules that one message keeps or breaks by itself."""

RULES: dict[str, Rule] = {}
"""All rules by id, in the order in which reports name them."""


def _rule(identifier: str, section: str, text: str) -> Rule:
    rule = RULES[identifier] = Rule(identifier, section, text, identifier not in _ALONE)
    return rule


# -- iWARP ----------------------------------------------------------------------------------------------------------

MPA_SET_UP = _rule("mpa.set-up", "RFC 5044 7.1", "a connection begins with an MPA request and an MPA reply")
MPA_ENHANCED = _rule("mpa.enhanced", "RFC 6581 4", "an enhanced MPA frame has IRD and ORD")
MPA_FIRST_FPDU = _rule("mpa.first-fpdu", "RFC 5044 7.1.2", "the responder sends no FPDU before it has received one")
MPA_CRC = _rule("mpa.crc", "RFC 5044 4.4", "the CRC of an FPDU is right")
DDP_HEADER = _rule("ddp.header", "RFC 5040 4.1", "versions are 1, the opcode is known and goes with the tagged bit")
DDP_QUEUE = _rule("ddp.queue", "RFC 5040 4.3", "an untagged message uses the queue of its opcode")
DDP_MSN = _rule("ddp.msn", "RFC 5041 5.3", "message sequence numbers of a queue follow each other")
DDP_OFFSET = _rule("ddp.offset", "RFC 5041 5.1", "the segments of a message follow each other without gap or overlap")
RDMAP_READ = _rule("rdmap.read-request", "RFC 5040 4.4", "an RDMA Read Request has 28 bytes")
RDMAP_STAG = _rule(
    "rdmap.invalidate-stag", "RFC 5040 4.1", "only a Send with Invalidate names an STag; others have 0 there"
)

# -- RoCE and InfiniBand --------------------------------------------------------------------------------------------

IB_PACKET = _rule("ib.packet", "IBA 9.2", "a packet has all the headers that its opcode asks for")
IB_ICRC = _rule("ib.icrc", "IBA 7.8.1, A17.3.3", "the invariant CRC of a packet is right")
IB_OPCODE = _rule("ib.opcode", "IBA 9.7.3.3", "the packets of a message are first, middle and last, in this order")
IB_SIZE = _rule("ib.size", "IBA 9.7.3.4", "first and middle packets are as long as the MTU, others no longer")
IB_WRITE = _rule("ib.write-length", "IBA 9.7.3.4", "an RDMA Write has as many bytes as its header announces")
IB_PSN = _rule("ib.psn", "IBA 9.7.3.1", "packet sequence numbers follow each other; what is lost is sent again")
IB_ACK = _rule("ib.ack", "IBA 9.7.5.1", "only packets that were sent are acknowledged")

# -- RDMA on any fabric ---------------------------------------------------------------------------------------------

RDMA_READS = _rule("rdma.reads", "RFC 6581 4, IBA 9.4.4", "no more RDMA Reads are outstanding than were negotiated")
RDMA_RESPONSE = _rule(
    "rdma.read-response", "RFC 5040 5.2, IBA 9.7.5", "an RDMA Read gets all that it asked for, in order"
)
RDMA_DIRECTION = _rule("rdma.direction", "MS-SMB2 3.3.5.12, 3.3.5.13", "only the server begins RDMA Reads and Writes")
RDMA_TOKEN = _rule("rdma.token", "MS-SMBD 3.1.4.3", "RDMA goes to memory that a request offers")
RDMA_INVALIDATED = _rule("rdma.invalidated", "MS-SMBD 3.1.4.3", "memory is not used after its token was invalidated")
RDMA_LATE = _rule("rdma.late", "MS-SMB2 3.3.5.12, 3.3.5.13", "memory is not used after the response to its request")
RDMA_RANGE = _rule("rdma.range", "MS-SMBD 3.1.4.3", "RDMA stays inside the buffer descriptor")
RDMA_RIGHT = _rule("rdma.right", "MS-SMB2 3.3.5.12, 3.3.5.13", "a READ's memory is only written, a WRITE's only read")
RDMA_BYTES = _rule(
    "rdma.bytes", "MS-SMB2 3.3.5.12, 3.3.5.13", "a response by RDMA counts the bytes that went by RDMA before it"
)
INVALIDATE_MISSING = _rule(
    "rdma.invalidation-missing", "MS-SMB2 3.3.5.12, 3.3.5.13", "a request with RDMA_V1_INVALIDATE gets its token back"
)
INVALIDATE_UNASKED = _rule(
    "rdma.invalidation-unasked", "MS-SMB2 3.3.5.12, 3.3.5.13", "only tokens of RDMA_V1_INVALIDATE are invalidated"
)
DESCRIPTOR = _rule("rdma.descriptor", "MS-SMB2 2.2.19, 2.2.21", "the buffer descriptors of a request lie inside it")
TRANSFORM_CHAIN = _rule(
    "rdma.transform-chain", "MS-SMB2 3.3.5.13, 3.2.5.11", "an RDMA transform is whole and was negotiated"
)
TRANSFORM_MISSING = _rule(
    "rdma.transform-missing",
    "MS-SMB2 3.3.5.12, 3.2.4.7",
    "data of encrypted messages is encrypted by RDMA, too, and that of signed ones signed if that was negotiated",
)
TRANSFORM_AUTHENTIC = _rule("rdma.transform", "MS-SMB2 3.3.5.13, 3.2.5.11", "tag or signature of RDMA data is right")

# -- SMB Direct -----------------------------------------------------------------------------------------------------

SMBD_REQUEST = _rule("smbd.negotiate-request", "MS-SMBD 3.1.5.6", "sizes, credits and version are possible")
SMBD_RESPONSE = _rule("smbd.negotiate-response", "MS-SMBD 3.1.5.7", "sizes, credits and version are possible")
SMBD_ORDER = _rule("smbd.order", "MS-SMBD 3.1.5.4", "data is transferred after the negotiation, in both directions")
SMBD_LENGTH = _rule("smbd.length", "MS-SMBD 3.1.5.8", "a data transfer message has 20 bytes at least")
SMBD_OFFSET = _rule("smbd.offset", "MS-SMBD 3.1.5.8", "DataOffset is aligned to 8 bytes and behind the header")
SMBD_BOUNDS = _rule("smbd.bounds", "MS-SMBD 3.1.5.8", "DataOffset and DataLength lie inside the message")
SMBD_SIZE = _rule("smbd.size", "MS-SMBD 3.1.5.6", "no message is longer than the peer's MaxReceiveSize")
SMBD_REQUESTED = _rule("smbd.credits-requested", "MS-SMBD 3.1.5.8", "CreditsRequested is not 0")
SMBD_OVERDRAWN = _rule("smbd.credits-overdrawn", "MS-SMBD 3.1.5.1", "nothing is sent without a credit")
SMBD_LAST = _rule("smbd.last-credit", "MS-SMBD 3.1.5.1", "the last credit is used only to grant credits")
SMBD_EMPTY = _rule("smbd.empty", "MS-SMBD 3.1.5.4", "a message without data announces no more of it")
SMBD_REMAINING = _rule(
    "smbd.remaining", "MS-SMBD 3.1.5.8", "RemainingDataLength counts down to 0, fragment by fragment"
)
SMBD_FRAGMENTED = _rule(
    "smbd.fragmented-size", "MS-SMBD 3.1.5.8", "no reassembled message is longer than the peer's MaxFragmentedSize"
)
SMBD_FLAGS = _rule("smbd.flags", "MS-SMBD 2.2.3", "Flags has no bit but SMB_DIRECT_RESPONSE_REQUESTED")
SMBD_GRANTED = _rule(
    "smbd.credits-granted", "MS-SMBD 3.1.5.9", "no end is granted more credits than its CreditsRequested, twice at most"
)
SMBD_RESERVED = _rule("smbd.reserved", "MS-SMBD 2.2.1, 2.2.2, 2.2.3", "Reserved is 0")
SMBD_PADDING = _rule("smbd.padding", "MS-SMBD 3.1.5.4", "the bytes between header and data are 0")
SMBD_KEEPALIVE = _rule("smbd.keepalive", "MS-SMBD 3.1.5.8", "SMB_DIRECT_RESPONSE_REQUESTED is answered promptly")

# -- SMB2 -----------------------------------------------------------------------------------------------------------

SMB2_FRAME = _rule("smb2.frame", "MS-SMB2 2.1", "a message over TCP begins with a zero byte and its length")
SMB2_HEADER = _rule("smb2.header", "MS-SMB2 2.2.1", "a message begins with a header of SMB2")
SMB2_NEXT = _rule("smb2.next-command", "MS-SMB2 2.2.1.2", "NextCommand is aligned to 8 bytes and inside the message")
SMB2_BODY = _rule("smb2.body", "MS-SMB2 2.2", "StructureSize is that of the command")
SMB2_BUFFER = _rule("smb2.buffer", "MS-SMB2 2.2", "the buffer of a message lies inside it")
SMB2_VALUE = _rule("smb2.value", "MS-SMB2 2.2", "a field with a closed set of values has one of them")
SMB2_RESERVED = _rule("smb2.reserved", "MS-SMB2 2.2", "fields that the sender must set to 0 are 0")
SMB2_ENTRIES = _rule(
    "smb2.entries",
    "MS-FSCC 2.4, MS-SMB2 2.2.13.2",
    "the entries of a list are whole, and each names an aligned place for the next one",
)
SMB2_CONTEXTS = _rule(
    "smb2.negotiate-contexts", "MS-SMB2 2.2.3.1, 2.2.4.1", "negotiate contexts lie inside the message"
)
SMB2_DIRECTION = _rule("smb2.direction", "MS-SMB2 2.2.1.2", "SERVER_TO_REDIR is set in responses and not in requests")
SMB2_RELATED = _rule("smb2.related", "MS-SMB2 3.3.5.2.7", "the first request of a message is not related to another")
SMB2_ID = _rule("smb2.message-id", "MS-SMB2 3.3.5.2.3", "no MessageId is used twice")
SMB2_OVERDRAWN = _rule("smb2.credits-overdrawn", "MS-SMB2 3.3.5.2.3", "no request uses credits that were not granted")
SMB2_CHARGE = _rule("smb2.credit-charge", "MS-SMB2 3.3.5.2.5", "CreditCharge pays for the bytes asked for or sent")
SMB2_STARVED = _rule("smb2.credits-starved", "MS-SMB2 3.3.1.2", "the client is never left without credits")
SMB2_ANSWER = _rule("smb2.response", "MS-SMB2 3.3.4.1", "every response answers a request, once and with its command")
SMB2_ASYNC = _rule("smb2.async", "MS-SMB2 3.3.4.2, 3.3.4.4", "interim and final response have the same unique AsyncId")
SMB2_RESPONSE_IDS = _rule(
    "smb2.response-ids", "MS-SMB2 3.3.4.3, 3.3.4.4", "a response has the SessionId and the TreeId of its request"
)
SMB2_RESPONSE_CHARGE = _rule(
    "smb2.response-charge", "MS-SMB2 3.3.4.3, 3.3.4.4", "a response has the CreditCharge of its request"
)
SMB2_GRANTED = _rule(
    "smb2.credits-granted", "MS-SMB2 3.3.1.2", "a response grants about what its request asks for and takes"
)
SMB2_DIALECT = _rule("smb2.dialect", "MS-SMB2 3.3.5.4", "the server chooses a dialect that the client offers")
SMB2_SESSION = _rule("smb2.session-id", "MS-SMB2 3.3.5.2.9", "requests name sessions that exist on their connection")
SMB2_TREE = _rule("smb2.tree-id", "MS-SMB2 3.3.5.2.11", "requests name tree connects that exist in their session")
SMB2_FILE = _rule("smb2.file-id", "MS-SMB2 3.3.5.10 to 3.3.5.21", "requests name opens that a CREATE response gave")
SMB2_MAX_SIZE = _rule("smb2.max-size", "MS-SMB2 3.3.5.12, 3.3.5.13", "no READ or WRITE is larger than was negotiated")
SMB2_READ_LENGTH = _rule("smb2.read-length", "MS-SMB2 3.3.5.12", "a READ returns no more than was asked for")
SMB2_WRITE_COUNT = _rule("smb2.write-count", "MS-SMB2 3.3.5.13", "no more is written than a WRITE has")
SIGNED = _rule("smb2.signed", "MS-SMB2 3.2.4.1.1, 3.3.4.1.1", "what a session must sign is signed")
SIGNATURE = _rule("smb2.signature", "MS-SMB2 3.1.5.1", "signatures are right")
ENCRYPTED = _rule(
    "smb2.encrypted", "MS-SMB2 3.2.4.1.8, 3.3.4.1.4", "what a session or a share encrypts is encrypted, both ways"
)
TRANSFORM = _rule("smb2.transform", "MS-SMB2 2.2.41, 3.3.5.2.1.1", "the transform header fits the message it protects")
DECRYPTED = _rule("smb2.decryption", "MS-SMB2 3.1.4.3", "encrypted messages are authentic")
NONCE = _rule("smb2.nonce", "MS-SMB2 3.1.4.3", "no nonce is used twice with a key")
COMPRESSION = _rule(
    "smb2.compression", "MS-SMB2 2.2.42", "headers of a compressed message and its payloads are possible and inside it"
)
COMPRESSION_AGREED = _rule(
    "smb2.compression-negotiated",
    "MS-SMB2 3.1.4.4, 3.2.5.1.1.2, 3.3.5.2.1.2",
    "messages are compressed by what was negotiated",
)
COMPRESSION_SIZE = _rule(
    "smb2.compression-size",
    "MS-SMB2 3.1.5.3, 3.2.5.1.1.2, 3.3.5.2.1.2",
    "a compressed message declares the size that it has, and no more than was negotiated",
)
DECOMPRESSION = _rule(
    "smb2.decompression",
    "MS-SMB2 3.2.5.1.1.2, 3.3.5.2.1.2",
    "compressed data is well-formed, and a message with a header of SMB2",
)
COMPRESSION_CHOICE = _rule(
    "smb2.compression-choice", "MS-SMB2 3.3.5.4", "the server chooses compression that the client offers, each once"
)

"""Which create contexts count, by dialect and by each other."""

from __future__ import annotations

import struct

import pytest

from smb3server.commands.create.contexts import NOTHING, CreateContexts
from smb3server.commands.create.registry import decode
from smb3server.wire import create_contexts as wire
from smb3server.wire.create_contexts import RawContext
from smb3server.wire.file_info import NEED_EA, EaEntry, encode_eas
from smb3server.wire.status import NtStatus, StatusError

GUID = bytes(range(16))
LEASE = RawContext(wire.REQUEST_LEASE, wire.LEASE_CODEC.pack(wire.Lease(GUID, 7)))
LEASE_V2 = RawContext(wire.REQUEST_LEASE, wire.LEASE_V2_CODEC.pack(wire.LeaseV2(GUID, 7)))
DURABLE = RawContext(wire.DURABLE_REQUEST, bytes(16))
DURABLE_V2 = RawContext(
    wire.DURABLE_REQUEST_V2, wire.DURABLE_REQUEST_V2_CODEC.pack(wire.DurableRequestV2(create_guid=GUID))
)
RECONNECT = RawContext(wire.DURABLE_RECONNECT, struct.pack("<QQ", 3, 4))
RECONNECT_V2 = RawContext(
    wire.DURABLE_RECONNECT_V2, wire.DURABLE_RECONNECT_V2_CODEC.pack(wire.DurableReconnectV2(3, 4, GUID))
)
VERSION = RawContext(wire.APP_INSTANCE_VERSION, struct.pack("<HHIQQ", 24, 0, 0, 5, 6))


def test_no_contexts_ask_for_nothing() -> None:
    assert decode([], 0x0311) is NOTHING
    assert decode([RawContext(b"What", b"ever")], 0x0311) == CreateContexts()


@pytest.mark.parametrize(
    ("context", "since"), [(LEASE, 0x0210), (LEASE_V2, 0x0300), (DURABLE_V2, 0x0300), (VERSION, 0x0311)]
)
def test_contexts_count_from_their_dialect_on(context: RawContext, since: int) -> None:
    for dialect in (0x0202, 0x0210, 0x0300, 0x0302, 0x0311):
        assert (decode([context], dialect) != CreateContexts()) is (dialect >= since)


def test_a_reconnect_of_version_2_does_not_count_before_3_0() -> None:
    assert decode([RECONNECT_V2], 0x0210).reconnect is None
    assert decode([RECONNECT_V2], 0x0300).reconnect == wire.DurableReconnectV2(3, 4, GUID)


def test_a_request_beside_a_reconnect_is_ignored() -> None:
    found = decode([DURABLE, RECONNECT], 0x0311)
    assert not found.durable
    assert found.reconnect == wire.DurableReconnect(3, 4)


@pytest.mark.parametrize(
    "both", [(DURABLE, DURABLE_V2), (RECONNECT, RECONNECT_V2), (DURABLE_V2, RECONNECT), (DURABLE, RECONNECT_V2)]
)
def test_others_cannot_come_together(both: tuple[RawContext, RawContext]) -> None:
    for dialect in (0x0202, 0x0210, 0x0300, 0x0311):
        with pytest.raises(StatusError) as refused:
            decode(both, dialect)
        assert refused.value.status == NtStatus.INVALID_PARAMETER


def test_what_the_fields_hold() -> None:
    found = decode(
        [
            RawContext(wire.EA_BUFFER, b"".join(encode_eas([EaEntry(b"NAME", b"value", NEED_EA)]))),
            RawContext(wire.ALLOCATION_SIZE, struct.pack("<Q", 4096)),
            RawContext(wire.MAXIMAL_ACCESS, struct.pack("<Q", 99)),
            RawContext(wire.QUERY_ON_DISK_ID, b""),
            RawContext(wire.TIMEWARP, struct.pack("<Q", 77)),
            RawContext(wire.SD_BUFFER, b"descriptor"),
            RawContext(wire.APP_INSTANCE_ID, struct.pack("<HH16s", 20, 0, GUID)),
            LEASE_V2,
            VERSION,
        ],
        0x0311,
    )
    assert found == CreateContexts(
        eas=(EaEntry(b"NAME", b"value", NEED_EA),),
        allocation_size=4096,
        timewarp=77,
        security_descriptor=b"descriptor",
        lease=wire.LeaseV2(GUID, 7),
        others=found.others,
    )
    assert found.others == {
        wire.MAXIMAL_ACCESS: wire.Timewarp(99),
        wire.QUERY_ON_DISK_ID: True,
        wire.APP_INSTANCE_ID: wire.AppInstanceId(app_instance_id=GUID),
        wire.APP_INSTANCE_VERSION: wire.AppInstanceVersion(version_high=5, version_low=6),
    }
    assert found.lease_key == GUID

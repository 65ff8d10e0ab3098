"""Lookups whose SIDs are NULL pointers."""

from __future__ import annotations

import struct

import pytest

from smb3server.rpc.lsarpc import UUID
from smb3server.wire.status import NtStatus
from tools.fuzz.services import Services, trusted

LOOKUP_SIDS3 = 76


@pytest.mark.parametrize("count", [1, 3])
def test_a_null_sid_is_an_invalid_parameter(count: int) -> None:
    """Each SID is checked for validity before any is looked up. [MS-LSAT 3.1.4.9]"""
    services = Services()
    (interface,) = [found for found in services.interfaces(trusted(services.association())) if found.uuid == UUID]
    # SidEnumBuffer with NULL pointers, no names, LsapLookupWksta, no options, client revision 2.
    sids = struct.pack("<III", count, 0x20000, count) + bytes(4 * count)
    stub = sids + struct.pack("<IIHHIII", 0, 0, 1, 0, 0, 0, 2)
    answer = interface.operations[LOOKUP_SIDS3](stub)
    assert isinstance(answer, bytes)
    assert answer[-4:] == struct.pack("<I", NtStatus.INVALID_PARAMETER)

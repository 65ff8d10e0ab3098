"""Notification buffers and NDR, there and back, and what is no such thing."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smb3server.rpc.dcerpc import FAULT_BAD_STUB_DATA, Fault
from smb3server.rpc.ndr import operation
from smbdirect.errors import DecodeError
from witness import ndr
from witness.client import WitnessClientError, choose_witness

ADDRESSES = st.builds(ndr.AddressInfo, st.ip_addresses(), st.booleans())
NAMES = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
INTERFACES = st.builds(
    ndr.InterfaceInfo, NAMES, st.sampled_from([ndr.V1, ndr.V2]), st.sampled_from(list(ndr.InterfaceState)),
    st.none() | st.ip_addresses(v=4), st.none() | st.ip_addresses(v=6), st.booleans(),
)  # fmt: skip


@given(st.lists(ADDRESSES, max_size=8))
def test_address_lists(addresses: list[ndr.AddressInfo]) -> None:
    packed = ndr.pack_address_list(addresses)
    assert ndr.ADDRESS_LIST_HEADER.unpack(packed).length == len(packed) == 12 + 24 * len(addresses)
    assert ndr.unpack_address_list(packed) == addresses


@given(st.lists(st.tuples(NAMES, st.sampled_from([0, 1, 255])), max_size=4))
def test_resource_changes(changes: list[tuple[str, int]]) -> None:
    packed = b"".join(ndr.pack_resource_change(name, state) for name, state in changes)
    assert ndr.unpack_resource_changes(packed, len(changes)) == changes


@given(st.lists(INTERFACES, max_size=5))
def test_interface_lists(interfaces: list[ndr.InterfaceInfo]) -> None:
    raw = bytes(ndr.interface_list_response(interfaces).getData())
    assert ndr.parse_interface_list(ndr.GetInterfaceListResponse(raw)) == interfaces


@given(st.binary(max_size=80), st.integers(0, 5))
def test_noise_in_notifications(data: bytes, count: int) -> None:
    for read in (lambda: ndr.unpack_resource_changes(data, count), lambda: ndr.unpack_address_list(data)):
        try:
            read()
        except DecodeError:
            continue


@pytest.mark.parametrize("method", [ndr.Register, ndr.RegisterEx, ndr.UnRegister, ndr.UnRegisterEx])
@given(data=st.binary(max_size=120))
def test_noise_in_requests_is_a_fault(method: type, data: bytes) -> None:
    def serve(request: object) -> object:
        return ndr.UnRegisterResponse()

    try:
        operation(method, serve)(data)
    except Fault as error:
        assert error.status == FAULT_BAD_STUB_DATA


def test_two_addresses_in_one_record() -> None:
    flags = ndr.AddressFlags.IPV4 | ndr.AddressFlags.IPV6 | ndr.AddressFlags.ONLINE
    record = ndr.ADDRESS_RECORD.pack(ndr.AddressRecord(flags, bytes((10, 0, 0, 1)), bytes(15) + b"\1"))
    packed = ndr.ADDRESS_LIST_HEADER.pack(ndr.AddressListHeader(36, 0, 1)) + record
    assert [str(entry.address) for entry in ndr.unpack_address_list(packed)] == ["10.0.0.1", "::1"]


@pytest.mark.parametrize("instances", [2, 0xFFFFFFFF])
def test_lists_longer_than_their_message(instances: int) -> None:
    packed = ndr.ADDRESS_LIST_HEADER.pack(ndr.AddressListHeader(36, 0, instances)) + bytes(24)
    with pytest.raises(DecodeError):
        ndr.unpack_address_list(packed)


def test_choice_of_a_witness() -> None:
    address = ipaddress.IPv4Address("10.0.0.1")
    own = ndr.InterfaceInfo("A", ndr.V2, ndr.InterfaceState.AVAILABLE, address, None, False)
    old = own._replace(group_name="B", version=ndr.V1, witness=True)
    gone = own._replace(group_name="C", state=ndr.InterfaceState.UNAVAILABLE, witness=True)
    new = own._replace(group_name="D", witness=True)
    assert choose_witness([own, old, gone, new]) == new
    assert choose_witness([own, old, gone]) == old
    with pytest.raises(WitnessClientError):
        choose_witness([own, gone])


def test_a_list_without_interfaces_is_an_error() -> None:
    """3.1.4.1."""
    response = ndr.GetInterfaceListResponse(bytes(ndr.interface_list_response([]).getData()))
    assert response["ErrorCode"] == 259
    assert ndr.parse_interface_list(response) == []

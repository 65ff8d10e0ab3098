"""What a client of the Witness service decodes. [MS-SWN 2.2.2]"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ipaddress import ip_address

from smbdirect.errors import DecodeError
from tools.fuzz.target import Target, choice, each_choice
from witness import ndr


def _changes(data: memoryview) -> None:
    ndr.unpack_resource_changes(bytes(data[1:]), data[0] if data else 0)


def _addresses(data: memoryview) -> None:
    ndr.unpack_address_list(bytes(data))


SUBJECTS: tuple[Callable[[memoryview], object], ...] = (_changes, _addresses)


def _seeds() -> Iterator[bytes]:
    addresses = [ndr.AddressInfo(ip_address(text), text != "10.0.0.1") for text in ("10.0.0.1", "fd00::1")]
    changes = ndr.pack_resource_change("FILES", 1) + ndr.pack_resource_change("OTHER", 255)
    yield from each_choice(SUBJECTS, [b"\2" + changes, ndr.pack_address_list(addresses)])


TARGET = Target(choice(SUBJECTS), _seeds, declared=(DecodeError,), max_input=2048)

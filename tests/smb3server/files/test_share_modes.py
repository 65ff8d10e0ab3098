"""Share modes (MS-FSA 2.1.5.1.2.2)."""

from dataclasses import dataclass

import pytest

from smb3server.files.file import conflicts
from smb3server.wire.create import Access

READ, WRITE, DELETE = int(Access.READ_DATA), int(Access.WRITE_DATA), int(Access.DELETE)


@dataclass
class Existing:
    granted_access: int
    share_access: int


@pytest.mark.parametrize(("right", "bit"), [(READ, 1), (int(Access.EXECUTE), 1), (WRITE, 2), (4, 2), (DELETE, 4)])
def test_each_right_needs_its_share_bit_both_ways(right: int, bit: int) -> None:
    assert conflicts([Existing(READ, 7 & ~bit)], right, 7)
    assert not conflicts([Existing(READ, bit)], right, 7)
    assert conflicts([Existing(right, 7)], READ, 7 & ~bit)
    assert not conflicts([Existing(right, 7)], READ, bit)


def test_attribute_only_opens_share_everything() -> None:
    attributes = int(Access.READ_ATTRIBUTES | Access.SYNCHRONIZE)
    assert not conflicts([Existing(READ | WRITE, 0)], attributes, 0)
    assert not conflicts([Existing(attributes, 0)], READ | WRITE, 0)

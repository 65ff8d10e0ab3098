"""Persistent reservations: who may do what with a disk, and what others are told. [SPC-3 5.6]"""

from __future__ import annotations

import struct

import pytest

from smb3server.virtual_disks.reservations import Action, Attention, Conflict, InvalidField, Reservations, Type

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
KEYS = {A: b"key of a", B: b"key of b", C: b"key of c"}


def _list(key: bytes = bytes(8), new: bytes = bytes(8), flags: int = 0) -> bytes:
    return struct.pack(">8s8s4xB3x", key, new, flags)


def _registered(*initiators: bytes) -> Reservations:
    found = Reservations()
    for initiator in initiators:
        found.change(initiator, Action.REGISTER, 0, _list(new=KEYS[initiator]))
    return found


def _may(found: Reservations, initiator: bytes, writes: bool) -> bool:
    try:
        found.check(initiator, writes)
    except Conflict:
        return False
    return True


@pytest.mark.parametrize(
    ("kind", "registrant", "stranger"),
    [
        # (read, write) of a registrant that does not hold it, and of an initiator that is not registered.
        (Type.WRITE_EXCLUSIVE, (True, False), (True, False)),
        (Type.EXCLUSIVE_ACCESS, (False, False), (False, False)),
        (Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, (True, True), (True, False)),
        (Type.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY, (True, True), (False, False)),
        (Type.WRITE_EXCLUSIVE_ALL_REGISTRANTS, (True, True), (True, False)),
        (Type.EXCLUSIVE_ACCESS_ALL_REGISTRANTS, (True, True), (False, False)),
    ],
)
def test_what_each_type_allows(kind: Type, registrant: tuple[bool, bool], stranger: tuple[bool, bool]) -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, kind, _list(KEYS[A]))
    assert [_may(found, A, writes) for writes in (False, True)] == [True, True]
    assert tuple(_may(found, B, writes) for writes in (False, True)) == registrant
    assert tuple(_may(found, C, writes) for writes in (False, True)) == stranger


def test_another_reservation_conflicts() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    for initiator, kind in ((B, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY), (A, Type.EXCLUSIVE_ACCESS)):
        with pytest.raises(Conflict):
            found.change(initiator, Action.RESERVE, kind, _list(KEYS[initiator]))
    with pytest.raises(Conflict):
        found.change(C, Action.RESERVE, Type.WRITE_EXCLUSIVE, _list(KEYS[C]))


def test_a_release_tells_the_others() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    with pytest.raises(InvalidField):
        found.change(A, Action.RELEASE, Type.EXCLUSIVE_ACCESS, _list(KEYS[A]))
    found.change(B, Action.RELEASE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[B]))
    assert found.holder == A
    found.change(A, Action.RELEASE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    assert found.next_attention(B) == Attention.RESERVATIONS_RELEASED
    assert found.next_attention(B) is None
    assert found.next_attention(A) is None


def test_a_preemption_takes_reservation_and_registration() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    found.change(B, Action.PREEMPT, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[B], KEYS[A]))
    assert found.holder == B
    assert set(found.keys) == {B}
    assert found.next_attention(A) == Attention.REGISTRATIONS_PREEMPTED
    assert not _may(found, A, writes=True)
    with pytest.raises(Conflict):
        found.change(B, Action.PREEMPT, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[B], KEYS[C]))


def test_the_end_of_a_registration() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_ALL_REGISTRANTS, _list(KEYS[A]))
    found.change(A, Action.REGISTER, 0, _list(KEYS[A]))
    assert found.type is Type.WRITE_EXCLUSIVE_ALL_REGISTRANTS
    found.change(B, Action.REGISTER_AND_IGNORE_EXISTING_KEY, 0, _list())
    assert found.type is Type.NONE
    with pytest.raises(Conflict):
        found.change(B, Action.REGISTER, 0, _list(KEYS[B], KEYS[B]))


def test_clear() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.EXCLUSIVE_ACCESS, _list(KEYS[A]))
    found.change(B, Action.CLEAR, 0, _list(KEYS[B]))
    assert not found.keys
    assert found.type is Type.NONE
    assert found.next_attention(A) == Attention.RESERVATIONS_PREEMPTED


@pytest.mark.parametrize(
    ("action", "scope_and_type", "parameters"),
    [
        (Action.REGISTER, 0, b"short"),
        (Action.REGISTER, 0, _list(KEYS[A], KEYS[A], flags=1)),
        (Action.RESERVE, 2, _list(KEYS[A])),
        (Action.RESERVE, 0x11, _list(KEYS[A])),
        (Action.PREEMPT, 1, _list(KEYS[A])),
        (9, 1, _list(KEYS[A])),
    ],
)
def test_what_no_command_may_have(action: int, scope_and_type: int, parameters: bytes) -> None:
    found = _registered(A)
    with pytest.raises(InvalidField):
        found.change(A, action, scope_and_type, parameters)
    assert found.keys == {A: KEYS[A]}


def test_what_is_read() -> None:
    found = _registered(A, B)
    found.change(A, Action.RESERVE, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, _list(KEYS[A]))
    assert found.read(0) == struct.pack(">II", 2, 16) + KEYS[A] + KEYS[B]
    assert found.read(1) == struct.pack(">II8s4xxB2x", 2, 16, KEYS[A], 5)
    assert found.read(2) == bytes.fromhex("00080080ea010000")
    status = found.read(3)
    assert int.from_bytes(status[4:8], "big") == len(status) - 8
    with pytest.raises(InvalidField):
        found.read(4)

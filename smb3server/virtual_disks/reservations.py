"""Persistent reservations of a disk that several initiators share. [SPC-3 5.6, 6.11, 6.12]

They live as long as the disk is open by an initiator that is registered. Persistent opens outlive the server, and
reservations with them (``stored``). An initiator that has one may ask for that by APTPL.
"""

from __future__ import annotations

import enum
import struct
from collections import deque

MAX_REGISTRATIONS = 64
"""As many as a cluster of Windows has nodes. SPC-3 leaves the number to the device. All of them are stored with each
persistent open of the disk at each change, so what a change costs grows with the square of the number."""
_PARAMETERS = struct.Struct(">8s8s4xB3x")
"""PERSISTENT RESERVE OUT parameter list: key, service action key, flags. [SPC-3 6.12.3]"""
_APTPL = 0x01
_NO_KEY = bytes(8)
MOST_ATTENTIONS = 16


class Attention(enum.IntEnum):
    """ASC and ASCQ of unit attention conditions. [SPC-3 annex D]"""

    CAPACITY_CHANGED = 0x2A09
    RESERVATIONS_PREEMPTED = 0x2A03
    RESERVATIONS_RELEASED = 0x2A04
    REGISTRATIONS_PREEMPTED = 0x2A05


class Action(enum.IntEnum):
    """Service actions of PERSISTENT RESERVE OUT. [SPC-3 6.12.2]"""

    REGISTER = 0
    RESERVE = 1
    RELEASE = 2
    CLEAR = 3
    PREEMPT = 4
    PREEMPT_AND_ABORT = 5
    REGISTER_AND_IGNORE_EXISTING_KEY = 6


class ReadAction(enum.IntEnum):
    """Service actions of PERSISTENT RESERVE IN. [SPC-3 6.11.1]"""

    READ_KEYS = 0
    READ_RESERVATION = 1
    REPORT_CAPABILITIES = 2
    READ_FULL_STATUS = 3


class Type(enum.IntEnum):
    """Types of reservations. [SPC-3 6.11.3.4]"""

    NONE = 0
    WRITE_EXCLUSIVE = 1
    EXCLUSIVE_ACCESS = 3
    WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 5
    EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 6
    WRITE_EXCLUSIVE_ALL_REGISTRANTS = 7
    EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 8


ALL_REGISTRANTS = (Type.WRITE_EXCLUSIVE_ALL_REGISTRANTS, Type.EXCLUSIVE_ACCESS_ALL_REGISTRANTS)
_REGISTRANTS = (
    *ALL_REGISTRANTS, Type.WRITE_EXCLUSIVE_REGISTRANTS_ONLY, Type.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY
)  # fmt: skip
_EXCLUDES_READS = (
    Type.EXCLUSIVE_ACCESS, Type.EXCLUSIVE_ACCESS_REGISTRANTS_ONLY, Type.EXCLUSIVE_ACCESS_ALL_REGISTRANTS
)  # fmt: skip


_TYPES = frozenset(int(kind) for kind in Type if kind)
_OF_A_TYPE = frozenset((Action.RESERVE, Action.RELEASE, Action.PREEMPT, Action.PREEMPT_AND_ABORT))


class Conflict(Exception):
    """The command ends with the SCSI status RESERVATION CONFLICT."""


class InvalidField(Exception):
    """The command ends with ILLEGAL REQUEST. ``in_list``: the parameter list is wrong, else the CDB."""

    def __init__(self, in_list: bool = True) -> None:
        super().__init__()
        self.in_list = in_list


class NoResources(Exception):
    """The command ends with ILLEGAL REQUEST, INSUFFICIENT REGISTRATION RESOURCES. [SPC-3 5.6.6]"""


class Reservations:
    """Who has registered with which key, and who holds the reservation. An initiator is known by its GUID."""

    def __init__(self, changes: int = 0) -> None:
        self.changes = changes
        """Number of changes so far. Of two stored states the one with more is the newer."""
        self.generation = 0
        self.keys: dict[bytes, bytes] = {}
        """By initiator."""
        self.type = Type.NONE
        self.holder = b""
        """The initiator that holds the reservation, unless all registrants do."""
        self.persists = False
        """Whether the last registration asked for APTPL (PTPL_A). [SPC-3 5.6.4]"""
        self.attentions: dict[bytes, deque[Attention]] = {}

    # What others may do

    def check(self, initiator: bytes, writes: bool) -> None:
        """Raise ``Conflict`` unless the initiator may read, or write, the disk now. [SPC-3 5.6.1]"""
        if self.type is Type.NONE or (not writes and self.type not in _EXCLUDES_READS):
            return
        if self._holds(initiator) or (self.type in _REGISTRANTS and initiator in self.keys):
            return
        raise Conflict

    def _holds(self, initiator: bytes) -> bool:
        if self.type is Type.NONE:
            return False
        return initiator in self.keys if self.type in ALL_REGISTRANTS else initiator == self.holder

    def establish(self, initiators: set[bytes], attention: Attention, spared: bytes) -> None:
        """Note a unit attention condition for each of the initiators but one."""
        for initiator in initiators - {spared}:
            queue = self.attentions.setdefault(initiator, deque(maxlen=MOST_ATTENTIONS))
            if attention not in queue:
                queue.append(attention)

    def next_attention(self, initiator: bytes) -> Attention | None:
        """Take the oldest unit attention condition of an initiator. None: there is none."""
        queue = self.attentions.get(initiator)
        if queue is None:
            return None
        found = queue.popleft()
        if not queue:
            del self.attentions[initiator]
        return found

    def forget(self, initiator: bytes) -> None:
        """Forget the conditions of an initiator that has no open any longer."""
        self.attentions.pop(initiator, None)

    # PERSISTENT RESERVE OUT

    def change(
        self, initiator: bytes, action: int, scope_and_type: int, parameters: bytes, may_persist: bool = False
    ) -> None:
        """Do a service action. Raises ``Conflict``, ``InvalidField``. Nothing changes then. ``may_persist``: whether
        APTPL is granted."""
        self._change(initiator, action, scope_and_type, parameters, may_persist)
        self.changes += 1

    def _change(self, initiator: bytes, action: int, scope_and_type: int, parameters: bytes, may_persist: bool) -> None:
        if len(parameters) < _PARAMETERS.size:
            raise InvalidField
        key, new_key, flags = _PARAMETERS.unpack_from(parameters)
        if action in (Action.REGISTER, Action.REGISTER_AND_IGNORE_EXISTING_KEY):
            if flags & ~_APTPL or (flags and not may_persist):
                # SPEC_I_PT and ALL_TG_PT are not supported.
                raise InvalidField
            own = self.keys.get(initiator, _NO_KEY)
            if action == Action.REGISTER and key != own:
                raise Conflict
            self._register(initiator, new_key)
            self.persists = bool(flags)
            return
        if self.keys.get(initiator) != key:
            raise Conflict
        kind = scope_and_type & 0x0F
        if action in _OF_A_TYPE and (scope_and_type >> 4 or kind not in _TYPES):
            raise InvalidField(in_list=False)
        if action == Action.RESERVE:
            self._reserve(initiator, Type(kind))
        elif action == Action.RELEASE:
            self._release(initiator, Type(kind))
        elif action == Action.CLEAR:
            self.establish(set(self.keys), Attention.RESERVATIONS_PREEMPTED, initiator)
            self.keys.clear()
            self._end()
            self.generation += 1
        elif action in (Action.PREEMPT, Action.PREEMPT_AND_ABORT):
            self._preempt(initiator, new_key, Type(kind))
        else:
            raise InvalidField(in_list=False)

    def _register(self, initiator: bytes, key: bytes) -> None:
        if key == _NO_KEY:
            if initiator in self.keys:
                self._unregister(initiator)
        elif initiator not in self.keys and len(self.keys) >= MAX_REGISTRATIONS:
            raise NoResources
        else:
            self.keys[initiator] = key
        self.generation += 1

    def _unregister(self, initiator: bytes) -> None:
        """Remove a registration, and the reservation if it held that. [SPC-3 5.6.10.3]"""
        last = self.type in ALL_REGISTRANTS and len(self.keys) == 1
        held = self.type not in ALL_REGISTRANTS and self._holds(initiator)
        del self.keys[initiator]
        if last or held:
            if self.type in _REGISTRANTS:
                self.establish(set(self.keys), Attention.RESERVATIONS_RELEASED, initiator)
            self._end()

    def _end(self) -> None:
        self.type, self.holder = Type.NONE, b""

    def _reserve(self, initiator: bytes, kind: Type) -> None:
        if self.type is Type.NONE:
            self.type, self.holder = kind, initiator
        elif not self._holds(initiator) or self.type is not kind:
            raise Conflict

    def _release(self, initiator: bytes, kind: Type) -> None:
        if not self._holds(initiator):
            # 5.6.10.2: a registrant that holds nothing releases nothing, and succeeds.
            return
        if kind is not self.type:
            raise InvalidField(in_list=False)
        if self.type in _REGISTRANTS:
            self.establish(set(self.keys), Attention.RESERVATIONS_RELEASED, initiator)
        self._end()

    def _preempt(self, initiator: bytes, key: bytes, kind: Type) -> None:
        """[SPC-3 5.6.10.4]"""
        if key == _NO_KEY and self.type not in ALL_REGISTRANTS:
            raise InvalidField
        every = key == _NO_KEY
        victims = {other for other, own in self.keys.items() if (every and other != initiator) or own == key}
        takes = (
            self.type in ALL_REGISTRANTS
            if every
            else self.type not in ALL_REGISTRANTS and self.keys.get(self.holder) == key
        )
        if not victims and not takes:
            raise Conflict
        changed = takes and self.type is not kind
        for victim in victims - {initiator}:
            del self.keys[victim]
        self.establish(victims, Attention.REGISTRATIONS_PREEMPTED, initiator)
        if takes:
            if changed:
                self.establish(set(self.keys), Attention.RESERVATIONS_RELEASED, initiator)
            self.type, self.holder = kind, initiator
        elif self.type in ALL_REGISTRANTS and not self.keys:
            self._end()
        self.generation += 1

    # PERSISTENT RESERVE IN

    def read(self, action: int, may_persist: bool = False) -> bytes:
        """Return the parameter data of a service action. ``may_persist``: as for ``change``. Raises
        ``InvalidField``."""
        head = struct.pack(">I", self.generation & 0xFFFFFFFF)
        if action == ReadAction.READ_KEYS:
            body = b"".join(self.keys.values())
        elif action == ReadAction.READ_RESERVATION:
            body = b""
            if self.type is not Type.NONE:
                key = _NO_KEY if self.type in ALL_REGISTRANTS else self.keys[self.holder]
                body = struct.pack(">8s4xxB2x", key, self.type)
        elif action == ReadAction.REPORT_CAPABILITIES:
            # TMV, and PTPL_C and PTPL_A. The mask of types has the bits of 1, 3, 5, 6, 7 and 8.
            return struct.pack(">HBBH2x", 8, may_persist, 0x80 | self.persists, 0xEA01)
        elif action == ReadAction.READ_FULL_STATUS:
            body = b"".join(self._status_of(initiator, key) for initiator, key in self.keys.items())
        else:
            raise InvalidField(in_list=False)
        return head + struct.pack(">I", len(body)) + body

    def _status_of(self, initiator: bytes, key: bytes) -> bytes:
        """Return a full status descriptor, whose TransportID is an iSCSI name made of the GUID. [SPC-3 6.11.5.2]"""
        name = f"naa.{initiator.hex()}".encode() + b"\0"
        name = name.ljust(-(-len(name) // 4) * 4, b"\0")
        transport = struct.pack(">BxH", 5, len(name)) + name
        holds = self._holds(initiator)
        return struct.pack(">8s4xBB4xHI", key, holds, self.type if holds else 0, 1, len(transport)) + transport

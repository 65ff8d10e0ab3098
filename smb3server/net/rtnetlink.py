"""The kernel's interfaces and addresses, asked for and changed over a socket. [rtnetlink(7), netlink(7)]

A request and its answers take a tenth of a millisecond and nothing but the standard library.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

LINK = struct.Struct("=BxHiII")
"""ifinfomsg: family, type of device, index, flags, change."""
ADDRESS = struct.Struct("=BBBBI")
"""ifaddrmsg: family, length of the prefix, flags, scope, index."""
CACHE_INFO = struct.Struct("=IIII")
"""ifa_cacheinfo: seconds preferred, seconds valid, two times that are the kernel's."""

_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, kind, flags, number, port."""
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_KIND_OF_ATTRIBUTE = 0x3FFF
"""NLA_TYPE_MASK."""
_END, _FAILED = 3, 2
"""NLMSG_DONE, NLMSG_ERROR. The latter with 0 acknowledges a change."""
_REQUEST, _ACKNOWLEDGE, _DUMP, _INTERRUPTED = 0x1, 0x4, 0x300, 0x10
_RECEIVE_SIZE = 1 << 16
"""Twice what the kernel sends at once."""
_TRIES = 5


class Question(IntEnum):
    """What may be asked for."""

    LINKS = 18
    ADDRESSES = 22


class Order(IntEnum):
    """What may be changed. NEW_ADDRESS renews one that is there."""

    NEW_ADDRESS = 20
    DELETE_ADDRESS = 21


_CREATE_OR_REPLACE = 0x400 | 0x100


class Attribute(IntEnum):
    """What follows the fixed part of a message. Numbers of links and of addresses overlap."""

    LINK_NAME = 3
    ADDRESS = 1
    LOCAL = 2
    CACHE = 6


class Entry(NamedTuple):
    """An interface or an address: the values of its fixed part, and its attributes by number."""

    fixed: tuple[int, ...]
    attributes: dict[int, bytes]


def read(question: Question) -> list[Entry]:
    """Return all interfaces, or all addresses. Raise ``OSError``."""
    layout = LINK if question is Question.LINKS else ADDRESS
    found: list[Entry] = []
    for _ in range(_TRIES):
        answers = list(_exchange(question, _DUMP, bytes(layout.size)))
        found = [_entry(layout, body) for _, body in answers]
        # Something changed meanwhile: entries may be missing.
        if not any(flags & _INTERRUPTED for flags, _ in answers):
            break
    return found


def change(order: Order, fixed: bytes, attributes: dict[Attribute, bytes]) -> None:
    """Change an address. ``fixed`` is packed by ``ADDRESS``. Raise ``OSError`` with the kernel's reason."""
    flags = _ACKNOWLEDGE | (_CREATE_OR_REPLACE if order is Order.NEW_ADDRESS else 0)
    for _ in _exchange(order, flags, fixed + b"".join(_pack(*each) for each in attributes.items())):
        continue


def _pack(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def _exchange(kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Send a request. Yield the flags and the body of each answer to its end."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as sock:
        sock.bind((0, 0))
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | flags, 1, 0) + body)
        while True:
            data = sock.recv(_RECEIVE_SIZE)
            at = 0
            while at + _HEADER.size <= len(data):
                length, answer, flags, _, _ = _HEADER.unpack_from(data, at)
                body = data[at + _HEADER.size : at + length]
                if answer in (_END, _FAILED):
                    (code,) = _ERROR.unpack_from(body)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return
                yield flags, body
                at += -(-max(length, _HEADER.size) // 4) * 4


def _entry(layout: struct.Struct, body: bytes) -> Entry:
    attributes: dict[int, bytes] = {}
    at = layout.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind & _KIND_OF_ATTRIBUTE] = body[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4
    return Entry(layout.unpack_from(body), attributes)

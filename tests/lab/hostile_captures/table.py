"""The table of faults: which rule each breaks, and in which session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.lab.hostile_captures.over_iwarp import IwarpSession
from tests.lab.hostile_captures.over_roce import RoceSession
from tests.lab.hostile_captures.over_tcp import TcpSession

Session = TcpSession | IwarpSession | RoceSession

PLAIN, SIGNED, SEALED = "linux612-tcp-smb3server", "linux612-siw-sign-smb3server", "linux612-siw-seal-smb3server"
COMPRESSED = "linux612-tcp-compress-smb3server"
OVER_SIW, OVER_RXE = "linux612-siw-smb3server", "linux612-rxe-ksmbd"
RDMA_SIGNED, RDMA_ENCRYPTED = "peer-iwarp-rdma-signed", "peer-iwarp-rdma-encrypted"


class Fault(NamedTuple):
    """One fault."""

    rule: str
    """Id of the rule that it breaks."""
    by: str
    make: Callable[[], Session]
    password: bool
    """Whether the judge needs the password to see it."""


FAULTS: dict[str, Fault] = {}
"""By rule."""


def over_tcp(
    rule: str, by: str, session: str = PLAIN, password: bool = False
) -> Callable[[Callable[[TcpSession], None]], Callable[[TcpSession], None]]:
    """Register a fault in messages over TCP."""

    def register(function: Callable[[TcpSession], None]) -> Callable[[TcpSession], None]:
        def make() -> TcpSession:
            made = TcpSession.of(session)
            function(made)
            return made

        assert rule not in FAULTS
        FAULTS[rule] = Fault(rule, by, make, password)
        return function

    return register


def over_iwarp(
    rule: str, by: str, session: str = OVER_SIW, password: bool = False
) -> Callable[[Callable[[IwarpSession], None]], Callable[[IwarpSession], None]]:
    """Register a fault in RDMA messages over iWARP."""

    def register(function: Callable[[IwarpSession], None]) -> Callable[[IwarpSession], None]:
        def make() -> IwarpSession:
            made = IwarpSession.of(session)
            function(made)
            return made

        assert rule not in FAULTS
        FAULTS[rule] = Fault(rule, by, make, password)
        return function

    return register


def over_roce(rule: str, by: str) -> Callable[[Callable[[RoceSession], None]], Callable[[RoceSession], None]]:
    """Register a fault in packets of RoCEv2."""

    def register(function: Callable[[RoceSession], None]) -> Callable[[RoceSession], None]:
        def make() -> RoceSession:
            made = RoceSession.of(OVER_RXE)
            function(made)
            return made

        assert rule not in FAULTS
        FAULTS[rule] = Fault(rule, by, make, False)
        return function

    return register


def write(rule: str, path: Path) -> None:
    """Write the capture that breaks ``rule``."""
    FAULTS[rule].make().write(path)

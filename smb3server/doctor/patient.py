"""What the doctor knows of a share: the question, what was tried, what was found, and the answer."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smb3server.client import errors
from smb3server.client.protocol import ClientSession, Tree
from smb3server.client.protocol.interfaces import ServerInterface
from smb3server.doctor.findings import Finding, Verdict
from smb3server.doctor.transfer import Garbled, Moved

TROUBLE = (OSError, *errors.TROUBLE, Garbled)


TRANSFORMS_WANTED = (
    "let the server offer RDMA transforms in dialect 3.1.1 (smb3server: rdma_transforms; Windows Server 2022 or later)"
)


class Answer(enum.Enum):
    """The answer to the question whether RDMA is used."""

    USED = "used"
    """Data was moved by RDMA at an address that clients find by themselves."""
    POSSIBLE = "possible"
    """A fabric answers, but no data was moved by RDMA, or clients find it only if they name it."""
    NOT_USED = "not-used"
    UNKNOWN = "unknown"
    """The doctor could not find out."""


class Target(NamedTuple):
    """The share to examine, and the account to use."""

    host: str
    port: int
    share: str
    """Empty if no share was named."""
    user: str
    password: str
    fabrics: tuple[str, ...]
    rdma_port: int | None

    @property
    def guest(self) -> bool:
        """Whether the logon is that of a guest: of anybody else the server must not make one."""
        return self.user == "guest"


@dataclass(slots=True)
class Attempt:
    """One attempt on one fabric, address and port."""

    fabric: str
    address: str
    port: int
    worked: bool
    text: str
    moved: Moved | None = None
    """Data moved through the share in this attempt."""


@dataclass(slots=True)
class Result:
    """The findings about a share, and the answer."""

    findings: list[Finding] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interfaces: list[ServerInterface] = field(default_factory=list)
    reached: bool = False
    answer: Answer = Answer.UNKNOWN
    verdict: str = ""

    @property
    def rdma(self) -> bool:
        """Whether RDMA is used."""
        return self.answer is Answer.USED

    def add(self, verdict: Verdict, subject: str, text: str, remedy: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(verdict, subject, text, remedy))

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {
            "reached": self.reached,
            "rdma": self.rdma,
            "answer": self.answer.value,
            "verdict": self.verdict,
            "interfaces": [
                {"number": entry.number, "address": str(entry.address), "speed": entry.speed, "rdma": entry.rdma}
                for entry in self.interfaces
            ],
            "attempts": [dataclasses.asdict(attempt) for attempt in self.attempts],
            "findings": [finding.as_json() for finding in self.findings],
        }


class Patient:
    """What the doctor has learned on the way to its verdict."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.result = Result()
        self.client_guid: bytes | None = None
        self.obstacle = ""
        """The first thing that keeps clients from using RDMA."""
        self.session: ClientSession | None = None
        """The session over TCP, to which further channels are bound."""
        self.tree: Tree | None = None
        """The share's tree connect in ``session``."""
        self.may_log_on = True
        """False once a logon was refused: another attempt might lock the account."""
        self.dead = False
        """Whether the host does not answer at all."""
        self.stalled = ""
        """Why data does not get through an RDMA connection that stands."""
        self.unknown = ""
        """The first thing that kept the doctor from finding out."""
        self.inline = ""
        """Why data would travel inline even on an RDMA connection."""
        self.moved_by: set[str] = set()
        """Fabrics that have moved data; one transfer on each is enough."""

    def block(self, why: str) -> None:
        self.obstacle = self.obstacle or why

    def give_up(self, why: str) -> None:
        self.unknown = self.unknown or why

"""How to connect, and how to copy: the options that are handed on whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

from smb3server.client import fabrics
from smb3server.process.secret_files import PASSWORD_VARIABLE

Rdma = Literal["auto", "prefer", "off", "iwarp", "roce", "verbs"]
OneSided = Literal["auto", "off"]
Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the size of the file, after each piece."""
MAX_CHANNELS = 8


class ConnectKeywords(TypedDict, total=False):
    """The arguments of ``connect``, which describes them. Their defaults are those of ``ConnectOptions``."""

    user: str | None
    password: str | None
    domain: str | None
    kerberos: bool
    kerberos_name: str | None
    guest: bool
    anonymous: bool
    credentials_file: str | os.PathLike[str] | None
    password_variable: str | None
    ask: Callable[[str], str] | None
    rdma: Rdma
    rdma_port: int | None
    quic: bool
    quic_authority: str | os.PathLike[str] | None
    quic_certificate: str | os.PathLike[str] | None
    quic_key: str | os.PathLike[str] | None
    one_sided: OneSided
    channels: int
    sign: bool
    encrypt: bool
    compress: bool
    map_names: bool
    follow: bool
    timeout: float
    answer_timeout: float
    patience: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ConnectOptions:
    """How to connect. Times are in seconds. Raises ``ValueError`` for values that are wrong."""

    user: str | None = None
    password: str | None = None
    domain: str | None = None
    kerberos: bool = False
    kerberos_name: str | None = None
    guest: bool = False
    anonymous: bool = False
    credentials_file: str | os.PathLike[str] | None = None
    password_variable: str | None = PASSWORD_VARIABLE
    ask: Callable[[str], str] | None = None
    rdma: Rdma = "auto"
    rdma_port: int | None = None
    quic: bool = False
    """Whether to connect over QUIC, and not over TCP."""
    quic_authority: str | os.PathLike[str] | None = None
    quic_certificate: str | os.PathLike[str] | None = None
    quic_key: str | os.PathLike[str] | None = None
    one_sided: OneSided = "off"
    """Whether files are read and written without requests where the server lends them. These bytes are not protected,
    so it has to be asked for."""
    channels: int = 1
    """Connections for data."""
    sign: bool = True
    encrypt: bool = False
    compress: bool = False
    """Whether data in messages is compressed where that pays."""
    map_names: bool = True
    follow: bool = True
    """Whether links of a namespace (DFS) are followed to other shares."""
    timeout: float = 10.0
    """For connecting, logging on and reaching the share."""
    answer_timeout: float = 60.0
    """Time of the server for one answer; see ``Client.limit_answers``."""
    patience: float = 30.0
    """For attempts to connect again; 0 for none."""

    def __post_init__(self) -> None:
        if self.rdma not in fabrics.MODES:
            raise ValueError(f"rdma: {self.rdma!r} is not one of {', '.join(fabrics.MODES)}")
        if self.one_sided not in ("auto", "off"):
            raise ValueError(f"one_sided: {self.one_sided!r} is not auto or off")
        if self.quic and (self.rdma not in ("auto", "off") or self.channels > 1):
            raise ValueError("quic: one connection over QUIC is all there is; leave out rdma and channels")
        if not self.quic and (self.quic_authority or self.quic_certificate or self.quic_key):
            raise ValueError("quic_authority, quic_certificate and quic_key need quic")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ValueError(f"channels: {self.channels} is not within 1 to {MAX_CHANNELS}")
        for name in ("timeout", "answer_timeout", "patience"):
            seconds = getattr(self, name)
            if not 0 <= seconds < float("inf") or (name == "timeout" and not seconds):
                raise ValueError(f"{name}: {seconds} is no number of seconds")

    @property
    def signs(self) -> bool:
        """Whether messages are signed. Guests and anonymous users have no key."""
        return self.sign and not (self.guest or self.anonymous)


class CopyKeywords(TypedDict, total=False):
    """Arguments of methods that copy a file: those of ``CopyOptions``."""

    progress: Progress | None
    resume: bool
    sparse: bool
    verify: bool
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CopyOptions:
    """How to copy a file."""

    progress: Progress | None = None
    resume: bool = False
    """Continue what an interrupted copy of the same version has left."""
    sparse: bool = True
    """Holes stay holes."""
    verify: bool = False
    """Read both files again and compare them."""
    expected: int = -1
    """Bytes of the file as far as a listing told; -1 if none did. Small files take fewer round trips then."""

    @property
    def keywords(self) -> CopyKeywords:
        """The same as arguments."""
        return {
            "progress": self.progress,
            "resume": self.resume,
            "sparse": self.sparse,
            "verify": self.verify,
            "expected": self.expected,
        }

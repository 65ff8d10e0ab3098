"""Connect to a share."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Unpack

from smb3server.client import address as addresses
from smb3server.client import credentials, names
from smb3server.client.link import Link
from smb3server.client.options import ConnectKeywords, ConnectOptions
from smb3server.client.share import Share


class Connecting:
    """A share that is about to be connected: ``await`` it, or use it in ``async with``."""

    def __init__(self, link: Link, login: credentials.Login, map_names: bool) -> None:
        self._link = link
        self._login = login
        self._map_names = map_names
        self._share: Share | None = None

    async def _connect(self) -> Share:
        await self._link.connect()
        return Share(self._link, self._login, map_names=self._map_names)

    def __await__(self) -> Generator[object, None, Share]:
        return self._connect().__await__()

    async def __aenter__(self) -> Share:
        self._share = await self._connect()
        return self._share

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._share is not None:
            await self._share.close()


def connect(url: str, **options: Unpack[ConnectKeywords]) -> Connecting:
    """Connect to ``smb://[DOMAIN;]USER@HOST[:PORT]/SHARE/FOLDER`` or ``//HOST/SHARE/FOLDER``.

    Who logs on: ``user`` and ``password``; without a password the file ``credentials_file``, the environment variable
    ``password_variable``, or ``~/.config/smb3server/credentials`` have it, or ``ask`` is called with a question. A
    program that connects to several servers gives each its own password, or None for ``password_variable`` and a
    section for each server in the file: the variable's password would be offered to all of them. With
    ``kerberos`` the credentials cache has a ticket, for ``kerberos_name`` if that is not the name in the address.
    Nobody becomes a guest or anonymous unless that is asked for.

    How data travels: with ``rdma`` "auto" over TCP, and by RDMA as soon as that is found, if this machine has an RDMA
    NIC and the server lists an address for it; the first data starts the search. "prefer" searches at once, and takes
    RDMA in software as well, which is slower than TCP. "off" is TCP. A fabric's name is that fabric, without which the
    connection fails. ``Share.why_not_rdma`` tells the reason for TCP. Data goes over ``channels`` connections at the
    same time. With ``one_sided`` "auto" files that the share lends are read and written by RDMA without requests, where
    data goes by RDMA in software: these bytes are neither signed nor encrypted. ``Share.why_not_one_sided`` tells why
    that is not so.

    Messages are signed unless ``sign`` is False, and encrypted with ``encrypt`` or if the server requires it.
    With ``compress`` the data of files is compressed where the server takes that (SMB 3.1.1) and it shrinks. Who sees
    the sizes of encrypted messages then learns something about their content.
    Characters that SMB does not allow in names (``: * ?`` ...) are carried as other clients do, unless ``map_names`` is
    False.

    Links of a namespace (DFS) are followed, to the servers that its server names in a signed or encrypted answer: the
    same user logs on there, unless the file with credentials has a section for that server. With ``follow`` False none
    is.

    Times are in seconds. ``timeout`` is for connecting, logging on and reaching the share. ``answer_timeout`` is for
    each single answer of the server, and for signs of life while there is nothing to answer; 0 is for ever. Without
    them the connection is lost. A connection that is lost is made again, for ``patience`` seconds.

    Raises ``ValueError`` for arguments that are wrong, ``CredentialsError``, and ``RemoteError``.
    """
    where = addresses.parse(url)
    if not where.share:
        raise ValueError(f"{where}: no share; write smb://USER@HOST/SHARE")
    how = ConnectOptions(**options)
    login = credentials.find(where, how)
    shown = addresses.Address(where.host, where.share, names.clean(where.path), where.port, login.user, login.domain)
    return Connecting(Link(shown, login, how), login, how.map_names)

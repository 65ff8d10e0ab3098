"""What all commands of ``smb3server client`` have in common: the options of a connection, and connected shares."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_NO_SERVER, EXIT_USAGE, CommandError
from smb3server.cli.together import together

if TYPE_CHECKING:
    from smb3server.client.address import Address
    from smb3server.client.options import ConnectKeywords
    from smb3server.client.places import SharePlace
    from smb3server.client.share import Share
    from smb3server.client.share_list import ListedShare

RDMA_MODES = ("auto", "prefer", "off", "iwarp", "roce", "verbs")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Connection:
    """The options of ``connection_options``."""

    password_file: Path | None
    given: ConnectKeywords
    """What ``connect`` is told of them."""


connection_options = together(
    click.option("-U", "--user", metavar="NAME", help="Log on as. The address may have it: smb://NAME@HOST/..."),
    click.option("--domain", metavar="NAME", help="The user's domain."),
    click.option(
        "--password-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Its first line is the password; mode 600. For one server.",
    ),
    click.option(
        "--credentials",
        "credentials_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Users and passwords by host. Default: ~/.config/smb3server/credentials.",
    ),
    click.option("-k", "--kerberos", is_flag=True, help="Log on with a Kerberos ticket (kinit)."),
    click.option("--kerberos-name", metavar="NAME", help="Of the server. Default: that of the address."),
    click.option("--guest", is_flag=True, help="Log on as a guest; nothing is signed."),
    click.option("--anonymous", is_flag=True, help="Log on without a name; nothing is signed."),
    click.option(
        "--rdma",
        type=click.Choice(RDMA_MODES),
        default="auto",
        show_default=True,
        help="How data travels: auto uses RDMA NICs, prefer RDMA in software, too, a name that fabric alone.",
    ),
    click.option("--rdma-port", type=click.IntRange(1, 65535), metavar="PORT", help="Of SMB Direct."),
    click.option("--quic", is_flag=True, help="Connect over QUIC, UDP port 443 by default."),
    *(
        click.option(f"--quic-{name}", type=click.Path(path_type=Path), metavar="FILE", help=text)
        for name, text in (
            ("authority", "PEM file with whom to trust. Default: whom this machine trusts."),
            ("certificate", "PEM file with this client's certificate."),
            ("key", "PEM file with the certificate's key."),
        )
    ),
    click.option(
        "--one-sided",
        type=click.Choice(("auto", "off")),
        default="off",
        show_default=True,
        help="Have files lent: their bytes travel without requests, neither signed nor encrypted.",
    ),
    click.option(
        "--channels",
        type=click.IntRange(1, 8),
        default=1,
        show_default=True,
        metavar="N",
        help="Connections that carry data at the same time.",
    ),
    click.option("--signing/--no-signing", "sign", default=True, show_default=True, help="Sign all messages and data."),
    click.option("--encrypt", is_flag=True, help="Encrypt all messages and data."),
    click.option(
        "--follow/--no-follow",
        "follow",
        default=True,
        show_default=True,
        help="Follow links of a namespace (DFS): the same user logs on where they lead.",
    ),
    click.option("--timeout", type=float, default=10.0, show_default=True, metavar="SECONDS", help="For connecting."),
    click.option(
        "--answer-timeout",
        type=float,
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="For each answer of the server; 0 is for ever.",
    ),
)
"""The options that say who logs on and how data travels; ``take`` collects them."""


compress_option = click.option(
    "--compress", is_flag=True, help="Have data compressed on the way where that pays: text over slow links."
)
"""For commands that move the data of files."""


def take(options: dict[str, Any]) -> Connection:
    """Return the options of ``connection_options`` out of those of a command."""
    from smb3server.client.options import ConnectKeywords

    names = ConnectKeywords.__annotations__.keys() & options.keys()
    given = ConnectKeywords(**{name: options.pop(name) for name in names})  # type: ignore[typeddict-item]
    return Connection(options.pop("password_file"), given)


class Shares:
    """The shares that a command uses, each connected once; ``run`` closes them."""

    def __init__(self, connection: Connection, servers: Sequence[str] = ()) -> None:
        """``servers`` are those that the command names. If they are several, a password that names none of them is
        offered to none of them.
        """
        self.connection = connection
        self._several = len(servers) > 1
        if self._several and connection.password_file is not None:
            named = " and ".join(servers)
            raise CommandError(
                f"--password-file has one password, and {named} are several servers; write their passwords to"
                " ~/.config/smb3server/credentials, each below [HOST]",
                EXIT_USAGE,
            )
        self._found: dict[tuple[str, int, str, str, str], Share] = {}

    @property
    def connected(self) -> list[Share]:
        """The shares that were used, with those that links of namespaces have led to."""
        return [share for found in self._found.values() for share in (found, *found.followed)]

    @property
    def listed_all(self) -> int:
        """The exit status of a command that lists folders: failed if names had to be left out."""
        return EXIT_FAILED if any(share.left_out for share in self.connected) else EXIT_DONE

    async def at(self, address: Address) -> Share:
        """Return the share of an address, connected at its root."""
        from smb3server.client.address import Address
        from smb3server.client.connecting import connect

        share = self._found.get(address.place)
        if share is None:
            if not address.share:
                raise CommandError(
                    f"{address}: no share; write smb://USER@HOST/SHARE. `smb3server client ls` lists the shares",
                    EXIT_USAGE,
                )
            root = Address(address.host, address.share, "", address.port, address.user, address.domain)
            share = self._found[address.place] = await connect(str(root), **self._options(address))
            for note in share.link.notes:
                print(f"note: {note}", file=sys.stderr)
        return share

    def _options(self, address: Address) -> ConnectKeywords:
        file, given = self.connection.password_file, self.connection.given.copy()
        given["password"] = address.password
        if file is not None:
            from smb3server.config.sources.passwords import read_password

            given["password"] = read_password(file)
        given["ask"] = ask if sys.stdin.isatty() else None
        if self._several:
            given["password_variable"] = None
        return given

    async def of_server(self, text: str) -> list[ListedShare] | None:
        """Return the shares of the server that an address names; None if it names a share."""
        from smb3server.client.address import parse

        with contextlib.suppress(ValueError):
            if parse(text).share:
                return None
        from smb3server.client.share_list import list_shares

        address = address_of(text)
        return await list_shares(str(address), **self._options(address))

    async def place(self, address: Address) -> SharePlace:
        """Return the folder that an address names."""
        from smb3server.client.places import SharePlace

        return SharePlace(await self.at(address), address.path)

    async def expand(self, text: str) -> list[tuple[Share, str]]:
        """Return what an address names: one path, or what its pattern matches. Raises ``CommandError`` for nothing."""
        from smb3server.client.share import is_pattern

        address = address_of(text)
        share = await self.at(address)
        if not is_pattern(address.path) or await share.exists(address.path):
            return [(share, address.path)]
        found = await share.glob(address.path)
        if not found:
            raise CommandError(f"{shown(text)}: nothing matches")
        return [(share, entry.path) for entry in found]

    async def close(self) -> None:
        """Close all connections."""
        for share in self._found.values():
            await share.close()


def ask(question: str) -> str:
    """Return what the user of the terminal answers, which is not shown."""
    import getpass

    return getpass.getpass(question)


def address_of(text: str) -> Address:
    """Parse an address of the command line; warn of a password in it. Raises ``CommandError``."""
    from smb3server.client.address import parse

    try:
        address = parse(text)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from None
    if address.password is not None:
        print(
            "warning: other users of this host can see the password on the command line; write it to"
            " ~/.config/smb3server/credentials or set SMB3SERVER_PASSWORD",
            file=sys.stderr,
        )
    return address


def names_folder(text: str) -> bool:
    """Return whether a word of the command line can only name a folder."""
    return text.endswith(("/", "\\") if text.startswith("\\\\") else "/")


def shown(text: str) -> str:
    """Return a name for the terminal: servers choose some of them, and may put control characters into them."""
    from smb3server.process.log_lines import printable

    return printable(text, 4096)


def run(connection: Connection, work: Callable[[Shares], Awaitable[int | None]], *, moves_data: bool = False) -> int:
    """Run the body of a command with shares, and return its exit status. Errors become ``CommandError``.

    A command that ``moves_data`` has the faster event loop, which takes longer to load."""
    from smb3server.client.credentials import CredentialsError
    from smb3server.config.error import ConfigError

    servers = _servers(click.get_current_context())

    async def main() -> int | None:
        shares = Shares(connection, servers)
        try:
            return await work(shares)
        finally:
            await shares.close()

    try:
        return _runner(moves_data)(main()) or EXIT_DONE
    except BrokenPipeError:
        raise
    except (CredentialsError, ConfigError, ValueError) as error:
        raise CommandError(shown(str(error)), EXIT_USAGE) from error
    except OSError as error:
        raise CommandError(shown(str(error)), status_of(error)) from error


def _runner(fast: bool) -> Callable[[Coroutine[object, object, int | None]], int | None]:
    """Return what runs a coroutine on an event loop of its own: on uvloop's if that is to be fast, and it is there."""
    if fast:
        with contextlib.suppress(ImportError):
            import uvloop

            run_fast: Callable[[Coroutine[object, object, int | None]], int | None] = uvloop.run
            return run_fast
    import asyncio

    return asyncio.run


def _servers(context: click.Context) -> list[str]:
    """Return the servers that the arguments of a command name."""
    from smb3server.client.address import is_remote, parse

    found: dict[str, None] = {}
    for parameter in context.command.params:
        given = context.params.get(parameter.name or "")
        for word in given if isinstance(given, tuple) else (given,):
            if isinstance(parameter, click.Argument) and isinstance(word, str) and is_remote(word):
                with contextlib.suppress(ValueError):
                    address = parse(word)
                    found[f"{address.host.lower()}:{address.port}"] = None
    return list(found)


def status_of(error: OSError) -> int:
    """Return the exit status for an error."""
    import errno

    unreachable = isinstance(error, ConnectionError | TimeoutError) or error.errno in (
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    )
    return EXIT_NO_SERVER if unreachable else EXIT_FAILED

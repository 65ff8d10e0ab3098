"""The options of the server's own command line."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import get_args

from smb3server.config.command_line import DEFAULT_FILE, CommandLine
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.passwords import find_password
from smb3server.config.schema import LogLevel, Share, User
from smbdirect import native


def parse_share(text: str) -> Share:
    """Read ``NAME=PATH[,user=USER][,ro]``. Raises ``ConfigError``."""
    name, separator, rest = text.partition("=")
    read_only = rest.endswith(",ro")
    path, forced, user = rest.removesuffix(",ro").rpartition(",user=")
    if not forced:
        path, user = user, ""
    if not separator or not path or (forced and not user):
        raise ConfigError(f"--share {text}: write NAME=PATH, NAME=PATH,ro or NAME=PATH,user=USER")
    return Share(name, path, read_only=read_only, force_user=user or None)


def parse_user(text: str, password_file: Path | None = None) -> User:
    """Read ``NAME:PASSWORD``, or ``NAME`` with the password from elsewhere (``passwords.find_password``).

    ``password_file`` is the file that holds the password, if there is one. Raises ``ConfigError``.
    """
    name, separator, password = text.partition(":")
    if not name:
        raise ConfigError("--user: write NAME or NAME:PASSWORD")
    return User(name, password=password if separator else find_password(name, password_file))


class _Version(argparse.Action):
    """Prints the version and what it runs on, and ends."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        try:
            version = metadata.version("smb3server")
        except metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"smb3server {version} on Python {platform.python_version()}; {native.report()}")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the server's own command line."""
    parser = argparse.ArgumentParser(
        prog="smb3server",
        description="Share directories over SMB 2.0.2 to 3.1.1, on TCP and on SMB Direct (RDMA in user space).",
        epilog="Everything else is set in the configuration file; the command line overrides it. SIGTERM ends the "
        "server after the requests in flight. Other commands, as the first argument: status, doctor, witness, cluster, "
        "hash, pcap, proxy, verbs-check, bench, conformance; each has --help.",
    )
    parser.add_argument("--version", action=_Version, help="print the version, and which modules in C are used")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE.toml",
        help=f"configuration file; default without --share: {DEFAULT_FILE}",
    )
    parser.add_argument(
        "--share", action="append", default=[], metavar="NAME=PATH[,user=USER][,ro]", help="share a directory"
    )
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME[:PASSWORD]",
        help="add a user; without a password: that of --password-file, of $SMB3SERVER_PASSWORD, or asked for",
    )
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="its first line is the users' password")
    parser.add_argument("--guest", action="store_true", help="let unknown users in as guests, without signing")
    parser.add_argument(
        "--rdma",
        nargs="?",
        const="auto",
        metavar="FABRICS",
        help="serve SMB Direct, too: auto (the default without a value), off, or fabrics: iwarp,roce,verbs",
    )
    parser.add_argument("--listen", action="append", default=[], metavar="ADDR", help="address to serve (default: all)")
    parser.add_argument("--port", type=int, help="TCP port (default: 445, as root)")
    parser.add_argument("--rdma-port", type=int, metavar="PORT", help="SMB Direct port (default: 5445)")
    parser.add_argument("--cluster", metavar="etcds://HOST:PORT,...", help="be a node of a cluster")
    parser.add_argument("--node", metavar="NAME", help="this node's name in the cluster")
    parser.add_argument("--state", type=Path, metavar="DIR", help="where state is kept that outlives the server")
    parser.add_argument("--log-level", choices=get_args(LogLevel), help="default: info")
    return parser


def _once(option: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name.casefold() in seen:
            raise ConfigError(f"{option} {name}: given twice")
        seen.add(name.casefold())


def parse_command_line(arguments: Sequence[str] | None = None) -> CommandLine:
    """Read the command line. ``arguments`` None means those of the process.

    Raises ``ConfigError``; argparse itself exits on unknown options and ``--help``.
    """
    options = make_parser().parse_args(arguments)
    shares = [parse_share(text) for text in options.share]
    _once("--share", (share.name for share in shares))
    users = [parse_user(text, options.password_file) for text in options.user]
    _once("--user", (user.name for user in users))
    for option, port in (("--port", options.port), ("--rdma-port", options.rdma_port)):
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"{option} {port}: not within 0..65535")
    file = options.config
    if file is None and not shares and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    server = {
        "listen": options.listen or None,
        "port": options.port,
        "rdma": options.rdma,
        "rdma_port": options.rdma_port,
        "state": options.state and str(options.state),
        "log_level": options.log_level,
    }
    cluster = {"etcd": options.cluster, "node": options.node}
    return CommandLine(
        file,
        shares,
        users,
        options.guest,
        {key: value for key, value in server.items() if value is not None},
        {key: value for key, value in cluster.items() if value is not None},
        [text for text in options.user if ":" in text],
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> Config:
    """Make and check the whole configuration. ``arguments`` None means those of the process.

    Raises ``ConfigError``; argparse itself exits on unknown options and ``--help``.
    """
    return parse_command_line(arguments).read()

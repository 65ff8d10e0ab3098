"""The command line, and the whole configuration from it and its file."""

from __future__ import annotations

import argparse
import platform
import re
import socket
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account, nt_hash
from smb3server.config.checks import check, check_cluster, check_share, once
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.passwords import find_password
from smb3server.config.reader import read_file
from smb3server.config.values import check_port, parse_rdma, unix_user
from smb3server.process import log_levels
from smbdirect import native


def default_name() -> str:
    """Return this machine's name as a NetBIOS name."""
    return re.sub(r"[^A-Za-z0-9-]", "", socket.gethostname().split(".")[0]).upper()[:15] or "SMB3SERVER"


def parse_share(text: str) -> ShareConfig:
    """Read ``NAME=PATH[,user=USER][,ro]``. Raises ``ConfigError``."""
    name, separator, rest = text.partition("=")
    read_only = rest.endswith(",ro")
    path, forced, user = rest.removesuffix(",ro").rpartition(",user=")
    if not forced:
        path, user = user, ""
    if not separator or not path or (forced and not user):
        raise ConfigError(f"--share {text}: write NAME=PATH, NAME=PATH,ro or NAME=PATH,user=USER")
    share = ShareConfig(name, Path(path), read_only, force_user=unix_user(f"--share {name}: user", user or None, True))
    check_share(share)
    return share


def parse_user(text: str, password_file: Path | None = None) -> Account:
    """Read ``NAME:PASSWORD``, or ``NAME`` with the password from elsewhere (``passwords.find_password``).

    ``password_file`` is the file that holds the password, if there is one. Raises ``ConfigError``.
    """
    name, separator, password = text.partition(":")
    if not name:
        raise ConfigError("--user: write NAME or NAME:PASSWORD")
    return Account(name, nt_hash(password if separator else find_password(name, password_file)))


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
    parser.add_argument("--config", type=Path, metavar="FILE.toml", help="configuration file")
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
    parser.add_argument(
        "--log-level",
        metavar="LEVEL[,COMPONENT:LEVEL]",
        help=f"{', '.join(log_levels.LEVELS)}, and others for components: {', '.join(log_levels.COMPONENTS)} "
        "(default: info)",
    )
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Config:
    """Make and check the whole configuration. ``arguments`` None means those of the process.

    Raises ``ConfigError``; argparse itself exits on unknown options and ``--help``.
    """
    options = make_parser().parse_args(arguments)
    config = Config()
    config.settings.server_name = default_name()
    if options.config is not None:
        read_file(options.config, config)
    once("share", (share.name for share in config.shares))
    once("user", (account.name for account in config.accounts))
    by_name = {share.name.casefold(): share for share in config.shares}
    named = [parse_share(text) for text in options.share]
    once("--share", (share.name for share in named))
    by_name.update({share.name.casefold(): share for share in named})
    config.shares = list(by_name.values())
    added = [parse_user(text, options.password_file) for text in options.user]
    config.command_line_passwords = [text for text in options.user if ":" in text]
    once("--user", (account.name for account in added))
    config.accounts += added
    if options.guest:
        config.settings.allow_guest = True
        for share in config.shares:
            share.guest = True
    _override(config, options)
    if not config.shares:
        raise ConfigError("nothing to share: give --share NAME=PATH or a configuration file with [[share]]")
    check_cluster(config)
    if not config.accounts and not config.settings.allow_guest and not config.settings.keytab:
        raise ConfigError("no user could log on: give --user NAME, --guest or a keytab")
    check(config)
    return config


def _override(config: Config, options: argparse.Namespace) -> None:
    config.cluster.url = options.cluster or config.cluster.url
    config.cluster.node = options.node or config.cluster.node
    convert: dict[str, Callable[[Any], Any]] = {"port": check_port, "rdma_port": check_port, "rdma": parse_rdma}
    for name in ("listen", "port", "rdma", "rdma_port", "state", "log_level"):
        value = getattr(options, name)
        if value is not None and value != []:
            setattr(config, name, convert.get(name, lambda given: given)(value))

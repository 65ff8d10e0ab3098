"""The server's command line: its options, and the configuration that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from smb3server.config.command_line import CommandLine
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.options import DEFAULT_FILE, ServerOptions, parse_options
from smb3server.config.passwords import find_password
from smb3server.config.schema import LogLevel, Share, User


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
    password = password if separator else find_password(name, password_file)
    if not password:
        raise ConfigError(f"--user {name}: the password is empty; remedy: give it one, or let guests in with --guest")
    return User(name, password=password)


def _once(option: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name.casefold() in seen:
            raise ConfigError(f"{option} {name}: given twice")
        seen.add(name.casefold())


def read_options(options: ServerOptions) -> CommandLine:
    """Read the options of a command line. Raises ``ConfigError``."""
    shares = [parse_share(text) for text in options.share]
    _once("--share", (share.name for share in shares))
    users = [parse_user(text, options.password_file) for text in options.user]
    _once("--user", (user.name for user in users))
    for option, port in (("--port", options.port), ("--rdma-port", options.rdma_port)):
        if port is not None and not 0 <= port <= 65535:
            raise ConfigError(f"{option} {port}: not within 0..65535")
    levels = get_args(LogLevel)
    if options.log_level is not None and options.log_level not in levels:
        raise ConfigError(f"--log-level {options.log_level}: one of {', '.join(levels)}")
    file = options.config
    if file is None and not shares and DEFAULT_FILE.exists():
        file = DEFAULT_FILE
    server = {
        "listen": list(options.listen) or None,
        "port": options.port,
        "rdma": options.rdma,
        "rdma_port": options.rdma_port,
        "state": None if options.state is None else str(options.state),
        "log_level": options.log_level,
        "drop_privileges": options.drop_privileges,
        "allow_root": options.allow_root or None,
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


def make_config(options: ServerOptions) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``."""
    return read_options(options).read()


def parse_arguments(arguments: Sequence[str]) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``, and ``click.UsageError`` for unknown options."""
    return make_config(parse_options(arguments))

"""The server's command line: its options, and the configuration that they make."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from pathlib import Path

from smb3server.config.command_line.command_line import CommandLine
from smb3server.config.command_line.options import DEFAULT_FILE, DEFAULT_PAGE, ServerOptions, parse_options
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.config.schema import Share, User
from smb3server.config.sources.passwords import find_password
from smb3server.process import log_levels
from smb3server.process.presence import exists
from smb3server.settings.observing import TraceConfig

MAX_PORT = 65535


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


def _parse_page(text: str) -> dict[str, object]:
    """Read ``ADDR:PORT`` of the web page. Raises ``ConfigError``."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ConfigError(f"--web {text}: write ADDR:PORT, such as {DEFAULT_PAGE}")
    return {"listen": host.removeprefix("[").removesuffix("]"), "port": int(port)}


def parse_trace(text: str) -> TraceConfig:
    """Read ``CLIENT[=FILE][,decrypt]``. Raises ``ConfigError``."""
    client, _, file = text.removesuffix(",decrypt").partition("=")
    try:
        network = ipaddress.ip_network(client, strict=False)
    except ValueError:
        raise ConfigError(
            f"--trace {text}: write CLIENT, CLIENT=FILE or CLIENT=FILE,decrypt; CLIENT is an address or a network"
        ) from None
    name = f"smb3server-trace-{client.replace('/', '_').replace(':', '-')}.pcapng"
    return TraceConfig(str(network), Path(file or name).absolute(), text.endswith(",decrypt"))


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
        if port is not None and not 0 <= port <= MAX_PORT:
            raise ConfigError(f"{option} {port}: not within 0..65535")
    if options.log_level is not None:
        try:
            log_levels.parse(options.log_level)
        except ValueError as error:
            raise ConfigError(f"--log-level: {error}") from error
    file = options.config
    if file is None and not shares and exists(DEFAULT_FILE):
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
        "admins": list(options.admin) or None,
    }
    cluster = {"etcd": options.cluster, "node": options.node}
    return CommandLine(
        file,
        shares,
        users,
        options.guest,
        {key: value for key, value in server.items() if value is not None},
        {key: value for key, value in cluster.items() if value is not None},
        {} if options.web is None else _parse_page(options.web),
        options.discover,
        [text for text in options.user if ":" in text],
        [parse_trace(text) for text in options.trace],
    )


def make_config(options: ServerOptions) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``."""
    return read_options(options).read()


def parse_arguments(arguments: Sequence[str]) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``, and ``click.UsageError`` for unknown options."""
    return make_config(parse_options(arguments))

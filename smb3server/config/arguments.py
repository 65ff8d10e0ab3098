"""The command line, and the whole configuration from it and its file."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from smb3server.auth.users import Account, nt_hash
from smb3server.config.checks import check, check_cluster, check_share, once
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.options import ServerOptions, parse_options
from smb3server.config.passwords import find_password
from smb3server.config.reader import read_file
from smb3server.config.users import default_users_file, read_accounts
from smb3server.config.values import check_port, parse_rdma, unix_user
from smb3server.process import log_levels


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


def parse_log_level(text: str) -> str:
    """Check levels of the log. Raises ``ConfigError``."""
    try:
        log_levels.parse(text)
    except ValueError as error:
        raise ConfigError(f"--log-level: {error}") from None
    return text


def parse_user(text: str, password_file: Path | None = None) -> Account:
    """Read ``NAME:PASSWORD``, or ``NAME`` with the password from elsewhere (``passwords.find_password``).

    ``password_file`` is the file that holds the password, if there is one. Raises ``ConfigError``.
    """
    name, separator, password = text.partition(":")
    if not name:
        raise ConfigError("--user: write NAME or NAME:PASSWORD")
    password = password if separator else find_password(name, password_file)
    if not password:
        raise ConfigError(f"--user {name}: the password is empty; remedy: give it one, or let guests in with --guest")
    return Account(name, nt_hash(password))


def parse_arguments(arguments: Sequence[str]) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``, and ``click.UsageError`` for unknown options."""
    return make_config(parse_options(arguments))


def make_config(options: ServerOptions) -> Config:
    """Make and check the whole configuration. Raises ``ConfigError``."""
    config = Config()
    config.settings.server_name = default_name()
    if options.config is not None:
        read_file(options.config, config)
    config.state = options.state or config.state
    _read_users(config)
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
    if not (config.accounts or config.keeps_users or config.settings.allow_guest or config.settings.keytab):
        raise ConfigError(
            "no user could log on: make one with `smb3server user add NAME`, or give --user NAME, --guest or a keytab"
        )
    check(config)
    return config


def _read_users(config: Config) -> None:
    """Read the users file, which may be missing if the configuration does not name it."""
    named = config.users_file is not None
    config.users_file = config.users_file or default_users_file(config.state)
    if named or config.keeps_users:
        config.accounts[:0] = read_accounts(config.users_file, config.run_as)
        if not config.accounts:
            config.notes.append(f"{config.users_file} has no users; remedy: smb3server user add NAME")


def _override(config: Config, options: ServerOptions) -> None:
    config.cluster.url = options.cluster or config.cluster.url
    config.cluster.node = options.node or config.cluster.node
    convert: dict[str, Callable[[Any], Any]] = {
        "listen": list,
        "port": check_port,
        "rdma_port": check_port,
        "rdma": parse_rdma,
        "log_level": parse_log_level,
    }
    for name in ("listen", "port", "rdma", "rdma_port", "log_level"):
        value = getattr(options, name)
        if value is not None and value != ():
            setattr(config, name, convert.get(name, lambda given: given)(value))

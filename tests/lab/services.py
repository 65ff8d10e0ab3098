"""The whole service in this process, from a configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.model import Config
from smb3server.service.service import Service
from tools.support import own_user


def configured(tmp_path: Path, *options: str, text: str = "") -> Config:
    share = tmp_path / "share"
    share.mkdir(exist_ok=True)
    file = tmp_path / "smb3server.toml"
    file.write_text(text)
    arguments = [
        "--config",
        str(file),
        "--share",
        own_user.option("share", share),
        "--user",
        "u:pw",
        "--port",
        "0",
    ]
    return parse_arguments([*arguments, "--rdma-port", "0", *options])


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Service]:
    config.settings.failed_logon_delay = 0
    service = Service(config)
    try:
        await service.start()
        yield service
    finally:
        await service.stop()


def port_of(service: Service, kind: str, host: str) -> int:
    start = f"{kind} {host}:"
    (found,) = [address for address in service.addresses() if address.startswith(start)]
    return int(found.removeprefix(start))

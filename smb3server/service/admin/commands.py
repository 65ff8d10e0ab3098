"""The commands of the admin socket that change a running server, or list what it can change.

Each is a small function from the request to the answer. What it must not do raises ``RefusedError``, with a text for
the operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from smb3server.admin.socket import Answer, Command, RefusedError
from smb3server.config.error import ConfigError
from smb3server.service.admin.clients import ClientAdmin
from smb3server.service.admin.links import LinkAdmin
from smb3server.service.admin.shares import ShareAdmin
from smb3server.service.reload import Outcome
from smb3server.state.ports import ShareChangeError

Json = dict[str, Any]
AT_ONCE = 50
"""Sessions that are closed in one turn of the event loop."""


def share_commands(shares: ShareAdmin) -> dict[str, Command]:
    """Return the commands of ``smb3server share``."""

    async def add(request: Json) -> Answer:
        name = _text(request, "name")
        with _refused():
            await shares.add(name, _text(request, "path"), _options(request), not request.get("temporary"))
        return {"share": _one(shares, name)}

    async def change(request: Json) -> Answer:
        name = _text(request, "name")
        with _refused():
            await shares.change(name, _options(request))
        return {"share": _one(shares, name)}

    async def remove(request: Json) -> Answer:
        with _refused():
            await shares.remove(_text(request, "name"))
        return {}

    return {
        "share-list": lambda _: {"shares": shares.report()},
        "share-add": add,
        "share-set": change,
        "share-remove": remove,
    }


def link_commands(links: LinkAdmin) -> dict[str, Command]:
    """Return the commands of ``smb3server dfs``."""

    async def add(request: Json) -> Answer:
        with _refused():
            lasting = await links.add(_text(request, "namespace"), _text(request, "path"), _options(request))
        return {"lasting": lasting}

    async def change(request: Json) -> Answer:
        with _refused():
            await links.change(_text(request, "namespace"), _text(request, "path"), _options(request))
        return {}

    async def remove(request: Json) -> Answer:
        with _refused():
            await links.remove(_text(request, "namespace"), _text(request, "path"))
        return {}

    return {
        "dfs-list": lambda _: {"namespaces": links.report()},
        "dfs-add": add,
        "dfs-set": change,
        "dfs-remove": remove,
    }


def client_commands(clients: ClientAdmin) -> dict[str, Command]:
    """Return the commands of ``smb3server session`` and ``smb3server file``."""

    async def close_sessions(request: Json) -> AsyncIterator[Answer]:
        user, share = _text(request, "user", ""), _text(request, "share", "")
        chosen = clients.choose_sessions(_ids(request), user, share)
        closed = []
        for session in chosen:
            closed.append(clients.close_session(session))
            if len(closed) % AT_ONCE == 0:
                # Closing thousands of opens takes time, which other clients get in between.
                yield {"progress": f"{len(closed)} of {len(chosen)} sessions closed"}
                await asyncio.sleep(0)
        waiting = clients.close_waiting(user) if user and not share else 0
        yield {"closed": closed, "waiting_files_closed": waiting}

    return {
        "session-list": lambda request: {
            "sessions": clients.sessions(_text(request, "user", ""), _text(request, "share", ""))
        },
        "session-close": close_sessions,
        "file-list": lambda request: {
            "files": clients.files(_text(request, "user", ""), _text(request, "share", ""), _text(request, "path", ""))
        },
        "file-close": lambda request: {"closed": clients.close_files(_ids(request))},
    }


def process_commands(reload: Callable[[], Awaitable[Outcome]], stop: Callable[[], None]) -> dict[str, Command]:
    """Return the commands of ``smb3server reload`` and ``smb3server stop``."""

    async def reload_all(_: Json) -> Answer:
        try:
            return (await reload()).as_json()
        except ConfigError as error:
            raise RefusedError(f"nothing was changed:\n{error}") from error

    def stop_soon(_: Json) -> Answer:
        # After the answer.
        asyncio.get_running_loop().call_soon(stop)
        return {}

    return {"reload": reload_all, "stop": stop_soon}


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except ShareChangeError as error:
        raise RefusedError(str(error)) from error


def _one(shares: ShareAdmin, name: str) -> Json:
    return next(entry for entry in shares.report() if entry["name"].casefold() == name.casefold())


def _text(request: Json, key: str, default: str | None = None) -> str:
    value = request.get(key, default)
    if not isinstance(value, str):
        raise RefusedError(f"{key}: text is needed")
    return value


def _options(request: Json) -> Json:
    value = request.get("options", {})
    if not isinstance(value, dict):
        raise RefusedError("options: an object is needed")
    return value


def _ids(request: Json) -> list[str]:
    value = request.get("ids", [])
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise RefusedError("ids: a list of texts is needed")
    return value

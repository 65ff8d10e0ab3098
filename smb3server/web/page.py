"""The addresses of the page, and what they answer.

GET gives the page itself, and data as JSON. POST changes something; it needs a login, and the token that came with it.
What an administrator can do here are commands of the admin socket, so each does the same on the page, on the command
line and in a script.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from hmac import compare_digest
from importlib import resources
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from smb3server.admin.socket import Answer, Command, RefusedError
from smb3server.net.http import body_in_time
from smb3server.process.log_tail import LogTail
from smb3server.status.model import Report
from smb3server.web.feed import Feed
from smb3server.web.guards import Guard, Handler
from smb3server.web.logins import Login, LoginError, Logins

log = logging.getLogger(__name__)

ACTIONS: Final = ("session-close", "file-close", "reload")
"""Commands of the admin socket that the page offers, if the server has them."""
CSRF_HEADER: Final = "X-CSRF-Token"
MAX_BODY: Final = 1 << 16
MAX_VIEWERS: Final = 32
STALLED: Final = 30.0
"""Seconds that a browser has to take a report."""
STATIC: Final = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "tables.js": "text/javascript",
    "chart.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_LOGIN: Final = web.RequestKey("login", Login)


class Page:
    """The page of one server."""

    def __init__(
        self, commands: Callable[[], Mapping[str, Command]], logins: Logins, guard: Guard, tail: LogTail, secure: bool
    ) -> None:
        """``commands`` returns those of the admin socket. ``secure``: whether it is served by TLS."""
        self._commands = commands
        self._logins = logins
        self._guard = guard
        self._tail = tail
        self._secure = secure
        self._cookie = "__Host-smb3server" if secure else "smb3server"
        self._files = {name: _read(name) for name in ("index.html", *STATIC)}
        self.feed = Feed(lambda: self._report(False))
        self.on_login: Callable[[web.Request], None] = lambda request: None
        """Called with each request of somebody who has logged on."""

    def application(self) -> web.Application:
        """Return what aiohttp serves."""
        app = web.Application(middlewares=[self._guard.serve], client_max_size=MAX_BODY)
        app.on_response_prepare.append(self._prepare)
        app.router.add_get("/", self._index)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_get("/api/me", self._me)
        app.router.add_post("/api/login", self._log_on)
        for path, handler in {
            "/api/stream": self._stream,
            "/api/files": self._open_files,
            "/api/log": self._log,
        }.items():
            app.router.add_get(path, self._for_users(handler))
        app.router.add_post("/api/logout", self._for_users(self._log_off))
        app.router.add_post("/api/do/{action}", self._for_users(self._do))
        return app

    async def _prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        self._guard.add_headers(response)

    async def _report(self, files: bool) -> Report:
        """Return the report of the server, of all its processes if it has several."""
        found = await _finish(self._commands()["status"], {"files": files})
        assert isinstance(found, Report)
        return found

    # The page itself has nothing to hide.

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(body=self._files["index.html"], content_type="text/html", charset="utf-8")

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in STATIC:
            raise web.HTTPNotFound
        return web.Response(body=self._files[name], content_type=STATIC[name], charset="utf-8")

    # Logging on and off

    def _for_users(self, handler: Handler) -> Handler:
        """Return a handler that serves only those who have logged on; changes only with their token."""

        async def checked(request: web.Request) -> web.StreamResponse:
            login = self._logins.find(request.cookies.get(self._cookie, ""))
            if login is None:
                raise web.HTTPUnauthorized(text="Log on first.")
            # aiohttp decodes bytes that are not UTF-8 as surrogates.
            given = request.headers.get(CSRF_HEADER, "").encode(errors="surrogateescape")
            if request.method == hdrs.METH_POST and not compare_digest(given, login.csrf.encode()):
                raise web.HTTPForbidden(text="The token is wrong: load the page again.")
            request[_LOGIN] = login
            self.on_login(request)
            return await handler(request)

        return checked

    async def _log_on(self, request: web.Request) -> web.Response:
        given = await _body(request)
        user, password = given.get("user"), given.get("password")
        if not isinstance(user, str) or not isinstance(password, str):
            raise web.HTTPBadRequest(text="User and password are needed.")
        try:
            secret, login = await self._logins.log_on(user, password, request.remote or "")
        except LoginError as error:
            return web.json_response({"error": str(error)}, status=403)
        response = web.json_response(self._describe(login))
        response.set_cookie(
            self._cookie, secret, path="/", httponly=True, samesite="Strict", secure=self._secure or None
        )
        return response

    def _describe(self, login: Login) -> dict[str, Any]:
        known = self._commands()
        return {"user": login.user, "csrf": login.csrf, "actions": [name for name in ACTIONS if name in known]}

    async def _me(self, request: web.Request) -> web.Response:
        """Say who has logged on. Nobody is no error: the page asks this first."""
        login = self._logins.find(request.cookies.get(self._cookie, ""))
        if login is not None:
            self.on_login(request)
        return web.json_response({"user": ""} if login is None else self._describe(login))

    async def _log_off(self, request: web.Request) -> web.Response:
        self._logins.log_off(request.cookies.get(self._cookie, ""))
        response = web.json_response({})
        response.del_cookie(self._cookie, path="/", httponly=True, samesite="Strict", secure=self._secure or None)
        return response

    # Data

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send a report at an interval, as server-sent events, until the login or the server ends."""
        if self.feed.viewers >= MAX_VIEWERS:
            raise web.HTTPServiceUnavailable(text="Too many browsers look at the page.")
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        reports = self.feed.follow()
        try:
            async for report in reports:
                if self._logins.find(request.cookies.get(self._cookie, "")) is None:
                    break
                async with asyncio.timeout(STALLED):
                    await response.write(b"data: " + report + b"\n\n")
        except (ConnectionError, TimeoutError) as error:
            log.debug("%s: web page: %s", request.remote, error)
        finally:
            await reports.aclose()
        return response

    async def _open_files(self, request: web.Request) -> web.Response:
        report = await self._report(True)
        sessions = [
            {"session": entry.session, "user": entry.user, "client": entry.client, "opens": entry.opens}
            for entry in report.sessions
        ]
        found = {"sessions": sessions, "locks": report.locks, "away": report.away}
        return web.json_response(msgspec.to_builtins(found))

    async def _log(self, request: web.Request) -> web.Response:
        try:
            after = int(request.query.get("after", "0"))
        except ValueError as error:
            raise web.HTTPBadRequest(text="after: a number is needed.") from error
        return web.json_response({"lines": [line._asdict() for line in self._tail.after(after)]})

    # Changes

    async def _do(self, request: web.Request) -> web.Response:
        """Run a command of the admin socket for an administrator."""
        name = request.match_info["action"]
        command = self._commands().get(name) if name in ACTIONS else None
        if command is None:
            raise web.HTTPNotFound
        given = await _body(request)
        user = request[_LOGIN].user
        log.info("%s: web page: %s: %s %s", request.remote, user, name, json.dumps(given))
        try:
            answer = await _finish(command, {**given, "command": name})
        except RefusedError as error:
            return web.json_response({"error": str(error)}, status=409)
        return web.json_response(answer)


async def _finish(command: Command, request: dict[str, Any]) -> Answer:
    """Run a command to its end and return its answer, the last object."""
    served = command(request)
    if isinstance(served, AsyncIterator):
        return [answer async for answer in served][-1]
    return await served if isinstance(served, Awaitable) else served


async def _body(request: web.Request) -> dict[str, Any]:
    async with body_in_time():
        data = await request.read()
    try:
        # RFC 8259 8.1: UTF-8, whatever charset the request names.
        given = json.loads(data.decode())
        # Halves of surrogate pairs, which JSON can name, are no text: no log or name could have them.
        json.dumps(given, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise web.HTTPBadRequest(text="Not JSON.") from error
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text="An object is needed.")
    return given


def _read(name: str) -> bytes:
    return (resources.files("smb3server.web") / "static" / name).read_bytes()

"""The page over HTTP: who gets what, and what is refused."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from smb3server.auth.users import nt_hash
from smb3server.config.error import ConfigError
from smb3server.service.service import Service
from smb3server.settings.web import WebConfig
from smb3server.status.model import Rates
from smb3server.status.report import collect
from smb3server.web import serving as web_serving
from smb3server.web.feed import shorten
from smb3server.wire.create import CreateDisposition
from tests.lab import scene as lab_scene
from tools.web_pictures.scene import ADMIN, PASSWORD, READ_WRITE, USER, serving, session, url

LOGIN, DATA, LOG_OFF = "api/login", "api/log", "api/logout"
Body = Callable[[Service, aiohttp.ClientSession], Awaitable[None]]


@asynccontextmanager
async def client(service: Service) -> AsyncIterator[aiohttp.ClientSession]:
    """A browser, as far as HTTP goes."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(url(service), cookie_jar=jar) as found:
        yield found


def run(folder: Path, body: Body, web: WebConfig | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), serving(folder, web) as service, client(service) as browser:
            await body(service, browser)

    asyncio.run(main())


async def log_on(browser: aiohttp.ClientSession, user: str = ADMIN, password: str = PASSWORD) -> tuple[int, Any]:
    async with browser.post(LOGIN, json={"user": user, "password": password}) as response:
        return response.status, await response.json()


async def status_of(browser: aiohttp.ClientSession, path: str, **options: Any) -> int:
    async with browser.get(path, **options) as response:
        return response.status


async def post(browser: aiohttp.ClientSession, path: str, csrf: str = "", **options: Any) -> int:
    options.setdefault("json", {})
    headers = {"X-CSRF-Token": csrf, **options.pop("headers", {})}
    async with browser.post(path, headers=headers, **options) as response:
        return response.status


def test_an_administrator_gets_in_and_out_again(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        assert await status_of(browser, DATA) == 401
        async with browser.post(LOGIN, json={"user": ADMIN, "password": PASSWORD}) as response:
            assert response.status == 200
            cookie = response.headers["Set-Cookie"]
            csrf = (await response.json())["csrf"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert csrf not in cookie
        assert await status_of(browser, DATA) == 200
        kept = {entry.key: entry.value for entry in browser.cookie_jar}
        assert await post(browser, LOG_OFF, csrf) == 200
        # The old cookie is worth nothing.
        assert await status_of(browser, DATA, cookies=kept) == 401

    run(tmp_path, body)


def test_others_do_not_get_in(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        for user, password, reason in (
            (ADMIN, "wrong", "Wrong user or password."),
            ("nobody", PASSWORD, "Wrong user or password."),
            ("", "", "Wrong user or password."),
            (USER, "wrong", "Wrong user or password."),
            (USER, PASSWORD, "bob is not an administrator"),
        ):
            status, answer = await log_on(browser, user, password)
            assert (status, answer["error"][: len(reason)]) == (403, reason)
        for path in ("api/files", "api/log", "api/stream"):
            assert await status_of(browser, path) == 401
        for path in (LOG_OFF, "api/do/reload", "api/do/session-close"):
            assert await post(browser, path) == 401

    run(tmp_path, body)


def test_guesses_count_as_those_of_smb_clients_do(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        service.server.guesses._lockout_failures = 3
        for _ in range(3):
            await log_on(browser, ADMIN, "wrong")
        status, answer = await log_on(browser)
        assert (status, answer["error"]) == (403, "Too many failed logons. Wait a minute.")

    run(tmp_path, body)


@pytest.mark.parametrize("change", ["password", "disabled", "removed", "not an administrator"])
def test_a_login_ends_when_the_account_may_no_longer(tmp_path: Path, change: str) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        await log_on(browser)
        users = service.server.users
        account = users.find(ADMIN)
        assert account is not None
        if change == "password":
            users.add(replace(account, nt_hash=nt_hash("another")))
        elif change == "disabled":
            users.add(replace(account, disabled=True))
        elif change == "removed":
            users.replace([])
        else:
            service.server.settings.admins = frozenset({USER})
        assert await status_of(browser, DATA) == 401

    run(tmp_path, body)


def test_changes_need_the_token_of_the_page(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        _, answer = await log_on(browser)
        path, csrf = "api/do/session-close", answer["csrf"]
        wanted = {"ids": ["0xffff"]}
        assert await post(browser, path, json=wanted) == 403
        assert await post(browser, path, "wrong", json=wanted) == 403
        assert await post(browser, path, csrf, json=wanted, headers={"Origin": "https://evil.example"}) == 403
        # As a form of another site would send it, without asking the browser's permission first.
        text = {"Content-Type": "text/plain"}
        assert await post(browser, path, csrf, json=None, data=json.dumps(wanted), headers=text) == 415
        assert await post(browser, path, csrf, json=[]) == 400
        assert await post(browser, path, csrf, json={"x": "y" * 70000}) == 413
        # A token alone does not let others in, and other commands of the admin socket are not offered.
        assert await post(browser, "api/do/stop", csrf) == 404
        # The server has looked at this one: there is no such session.
        assert await post(browser, path, csrf, json=wanted) == 409

    run(tmp_path, body)


def test_names_of_others_are_refused(tmp_path: Path) -> None:
    """DNS rebinding: a name of another site leads to this server."""

    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        for host in ("localhost", "files.local", "127.0.0.1:8445", "[::1]", "nas.example.com"):
            assert await status_of(browser, "", headers={"Host": host}) == 200
        assert await status_of(browser, "", headers={"Host": "evil.example"}) == 421

    run(tmp_path, body, WebConfig(port=0, names=("nas.example.com",)))


def test_every_answer_forbids_what_the_page_does_not_need(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        for path in ("", "static/app.js", "static/../page.py", "static/nothing.js", DATA):
            async with browser.get(path) as response:
                assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cache-Control"] == "no-store"
                assert "aiohttp" not in response.headers["Server"]

    run(tmp_path, body)


def test_the_stream_shows_what_clients_do(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        await log_on(browser)
        async with session(service, True) as opened, browser.get("api/stream") as response:
            await opened.tree_connect("media")
            assert response.content_type == "text/event-stream"
            lines: list[dict[str, Any]] = []
            while len(lines) < 2:
                line = await response.content.readline()
                if line.startswith(b"data: "):
                    lines.append(json.loads(line[6:]))
            report = lines[-1]
            (channel,) = report["channels"]
            assert (channel["fabric"], channel["rdma"]["code"]) == ("iwarp", "no-transfers")
            assert report["sessions"][0]["user"] == USER
            assert report["server"]["rates"]["requests"] >= 0
        async with browser.get("api/log") as response:
            assert any("alice logged on" in line["text"] for line in (await response.json())["lines"])

    run(tmp_path, body)


def test_a_session_is_ended_and_a_file_closed(tmp_path: Path) -> None:
    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        _, answer = await log_on(browser)
        assert set(answer["actions"]) == {"session-close", "file-close", "reload"}
        async with session(service, False) as opened:
            tree = await opened.tree_connect("media")
            await tree.create("a.txt", READ_WRITE, CreateDisposition.OPEN_IF)
            async with browser.get("api/files") as response:
                ((entry,),) = [found["opens"] for found in (await response.json())["sessions"]]
            assert entry["path"] == "a.txt"
            assert await post(browser, "api/do/file-close", answer["csrf"], json={"ids": [entry["id"]]}) == 200
            assert not service.server.opens.by_id
            (number,) = service.server.sessions.by_id
            ids = {"ids": [f"0x{number:016x}"]}
            assert await post(browser, "api/do/session-close", answer["csrf"], json=ids) == 200
            assert not service.server.sessions.by_id

    run(tmp_path, body)


def test_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_serving, "MAX_STRANGERS", 2)

    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        host, port = url(service).split("//")[1].strip("/").split(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        assert await opened[2][0].read() == b""
        for _, writer in opened:
            writer.close()
            await writer.wait_closed()

    run(tmp_path, body)


def test_nobody_else_listens_to_passwords(tmp_path: Path) -> None:
    async def start(config: WebConfig) -> str:
        async with serving(tmp_path, config) as service:
            return url(service)

    with pytest.raises(ConfigError, match="without TLS passwords would cross"):
        asyncio.run(start(WebConfig("0.0.0.0", 0)))
    assert asyncio.run(start(WebConfig("0.0.0.0", 0, plain_http=True))).startswith("http:")
    with pytest.raises(ConfigError, match="nobody may log on"):
        asyncio.run(start(WebConfig(port=0, admins=frozenset())))
    with pytest.raises(ConfigError, match=r"certificate .*nothing\.pem: No such file"):
        asyncio.run(start(WebConfig(port=0, certificate=tmp_path / "nothing.pem")))


def test_tls_protects_the_cookie(tmp_path: Path) -> None:
    pem = tmp_path / "web.pem"
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=files"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", f"{pem}.crt"]
    subprocess.run(["openssl", *what.split(), *names], check=True, capture_output=True)
    pem.write_text(pem.read_text() + Path(f"{pem}.crt").read_text())

    async def body(service: Service, browser: aiohttp.ClientSession) -> None:
        context = ssl.create_default_context(cafile=f"{pem}.crt")
        login = {"user": ADMIN, "password": PASSWORD}
        async with browser.post(LOGIN, json=login, ssl=context) as response:
            assert "Secure" in response.headers["Set-Cookie"]
            assert response.headers["Set-Cookie"].startswith("__Host-")
            assert response.headers["Strict-Transport-Security"]

    run(tmp_path, body, WebConfig(port=0, certificate=pem))


def test_a_report_for_the_page_has_a_limit(tmp_path: Path) -> None:
    async def scene(acted: lab_scene.Scene) -> None:
        await lab_scene.log_on(await acted.tcp())
        report = collect(acted.service.server)
        (channel,) = report.channels
        report.channels = [copy(channel) for _ in range(1000)]
        for number, row in enumerate(report.channels):
            row.channel, row.rates = number, Rates(read=5.0 if number == 900 else 0.0)
        shown = shorten(report)
        assert shown["channels_total"] == 1000
        assert len(shown["channels"]) == 500
        assert shown["channels"][0]["channel"] == 900

    lab_scene.play(tmp_path, scene)

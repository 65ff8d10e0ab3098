"""Connections to the page that have not logged on: how many, for how long, and what they may send."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from smb3server.auth import users as auth_users
from smb3server.net import http
from smb3server.net.host_lists import HostLists
from smb3server.service.service import Service
from smb3server.settings.web import WebConfig
from smb3server.web import serving as web_serving
from tools.web_pictures.scene import ADMIN, PASSWORD, serving, session, url

Body = Callable[[Service, str, int], Awaitable[None]]


def run(folder: Path, body: Body, config: WebConfig | None = None) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), serving(folder, config) as service:
            host, port = url(service).split("//")[1].strip("/").split(":")
            await body(service, host, int(port))

    asyncio.run(main())


@asynccontextmanager
async def strangers(host: str, port: int, count: int, first: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that send ``first`` and nothing else."""
    opened = [await asyncio.open_connection(host, port) for _ in range(count)]
    try:
        for _, writer in opened:
            writer.write(first)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def ended(readers: list[asyncio.StreamReader]) -> int:
    """Return how many of the connections the server has ended."""
    count = 0
    for reader in readers:
        try:
            async with asyncio.timeout(0.05):
                count += await reader.read(65536) == b""
        except (TimeoutError, ConnectionResetError) as error:
            count += isinstance(error, ConnectionResetError)
    return count


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


@pytest.fixture
def certificate(tmp_path: Path) -> WebConfig:
    pem = tmp_path / "web.pem"
    what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=files"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pem), "-out", f"{pem}.crt"]
    subprocess.run(["openssl", *what.split(), *names], check=True, capture_output=True)
    pem.write_text(pem.read_text() + Path(f"{pem}.crt").read_text())
    return WebConfig(port=0, certificate=pem)


@pytest.mark.parametrize("first", [b"", b"\x16\x03"], ids=["silent", "half a handshake"])
def test_peers_that_speak_no_tls_are_counted_and_end(
    tmp_path: Path, certificate: WebConfig, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http, "HANDSHAKE_TIMEOUT", 1.0)
    monkeypatch.setattr(http, "FIRST_REQUEST", 1.5)

    async def body(service: Service, host: str, port: int) -> None:
        assert service.web is not None
        door = service.web.door
        assert door is not None
        server = service.server
        async with strangers(host, port, 40, first) as readers:
            await until(lambda: door.connections == web_serving.MAX_STRANGERS_PER_ADDRESS)
            # They take places in the table of SMB's connections without a session, too.
            assert len(server.unauthenticated) == web_serving.MAX_STRANGERS_PER_ADDRESS
            async with session(service, False) as opened:
                await opened.tree_connect("media")
            await until(lambda: door.connections == 0)
            assert len(server.unauthenticated) == 0
            assert await ended(readers) == 40

    run(tmp_path, body, certificate)


@pytest.mark.parametrize(
    "first",
    [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"GET /static/app.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET"],
    ids=["first", "second"],
)
def test_half_a_request_does_not_hold_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(http, "FIRST_REQUEST", 1.0)
    monkeypatch.setattr(http, "NEXT_REQUEST", 1.0)

    async def body(service: Service, host: str, port: int) -> None:
        assert service.web is not None
        door = service.web.door
        assert door is not None
        async with strangers(host, port, 10, first):
            await until(lambda: door.connections == 10)
            await until(lambda: door.connections == 0)

    run(tmp_path, body)


def test_a_body_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_TIMEOUT", 0.3)
    head = (
        b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )

    async def body(service: Service, host: str, port: int) -> None:
        async with strangers(host, port, 1, head) as (reader,):
            assert b" 408 " in await reader.readline()

    run(tmp_path, body)


def test_strangers_do_not_displace_who_has_logged_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_serving, "MAX_STRANGERS", 4)
    monkeypatch.setattr("smbdirect.unauthenticated.GRACE", 0.0)

    async def body(service: Service, host: str, port: int) -> None:
        jar = aiohttp.CookieJar(unsafe=True)
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(url(service), cookie_jar=jar, connector=connector) as browser:
            async with browser.post("api/login", json={"user": ADMIN, "password": PASSWORD}) as response:
                assert response.status == 200
            async with browser.get("api/log") as response:
                assert response.status == 200
            assert service.web is not None
            door = service.web.door
            assert door is not None
            (own,) = door._known
            async with strangers(host, port, 12):
                await asyncio.sleep(0.2)
                async with browser.get("api/log") as response:
                    assert response.status == 200
                assert door._known == {own}

    run(tmp_path, body)


def test_addresses_that_are_denied_get_no_byte(tmp_path: Path, certificate: WebConfig) -> None:
    async def body(service: Service, host: str, port: int) -> None:
        settings = service.server.settings
        service.server.settings = msgspec.structs.replace(
            settings, hosts=HostLists(None, (ipaddress.ip_network("127.0.0.1"),))
        )
        async with strangers(host, port, 1) as readers:
            await asyncio.sleep(0.2)
            assert await ended(readers) == 1
        assert service.web is not None
        assert service.web.door is not None
        assert service.web.door.connections == 0

    run(tmp_path, body, certificate)


def test_guesses_that_come_at_once_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counted(password: str) -> bytes:
        nonlocal looked_at
        looked_at += 1
        return bytes(16)

    monkeypatch.setattr(auth_users, "nt_hash", counted)

    async def body(service: Service, host: str, port: int) -> None:
        connector = aiohttp.TCPConnector(limit=25)
        async with aiohttp.ClientSession(url(service), connector=connector) as browser:

            async def guess() -> None:
                async with browser.post("api/login", json={"user": ADMIN, "password": "wrong"}) as response:
                    assert response.status == 403

            guesses = [asyncio.ensure_future(guess()) for _ in range(100)]
            await asyncio.sleep(2)
            for task in guesses:
                task.cancel()
            await asyncio.gather(*guesses, return_exceptions=True)
        # Ten are free, and one or two later ones had their turn.
        assert 10 <= looked_at < 20

    run(tmp_path, body)


HOSTILE = [
    b'{"user":' + b"[" * 30_000,
    b'{"user": "a", "password": ' + b"9" * 30_000 + b"}",
    b'\xff\xfe{"user": 1}',
    b'{"user": "\\ud800", "password": "\\udfff"}',
    b"[]",
    b"",
]


def hostile_requests() -> list[bytes]:
    found = []
    for charset in ("utf-8", "nosuch", "zlib", "utf-16", "\xff", '"'):
        for data in HOSTILE:
            kind = f"application/json; charset={charset}".encode("latin-1")
            found.append(
                b"POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b"
                % (kind, len(data), data)
            )
    for host in (b"[::1", b"]", b"a" * 300, b"\xff\xff", b"127.0.0.1:99999999", b"", b"a b", b"127.0.0.1:-1"):
        found.append(b"GET / HTTP/1.1\r\nHost: " + host + b"\r\n\r\n")
    for path in (
        b"/%ff%00",
        b"//[",
        b"/static/..%2f..%2fpage.py",
        b"/api/log?after=" + b"9" * 6000,
        b"http://[/",
        b"*",
    ):
        found.append(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    for header in (
        b"Cookie: smb3server=\xff\xfe; =;;",
        b"X-CSRF-Token: \xc3\xa9\xff",
        b"Origin: \xff",
        b"Content-Length: x",
    ):
        found.append(
            b"POST /api/logout HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + header
            + b"\r\n\r\n{}"
        )
    return found


def test_no_request_leaves_a_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(20)

    async def body(service: Service, host: str, port: int) -> None:
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(url(service), cookie_jar=jar) as browser:
            async with browser.post("api/login", json={"user": ADMIN, "password": PASSWORD}) as response:
                assert response.status == 200
            (cookie,) = [f"{entry.key}={entry.value}".encode() for entry in browser.cookie_jar]
        requests = hostile_requests()
        requests += [request.replace(b"\r\n\r\n", b"\r\nCookie: " + cookie + b"\r\n\r\n", 1) for request in requests]
        for _ in range(200):
            damaged = bytearray(dice.choice(requests)[:400])
            for _ in range(dice.randrange(1, 6)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            requests.append(bytes(damaged))
        for request in requests:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            writer.write_eof()
            try:
                async with asyncio.timeout(3):
                    answer = await reader.read(64)
            except (TimeoutError, ConnectionResetError):
                answer = b""
            writer.transport.abort()
            assert b" 500 " not in answer, request[:200]

    with caplog.at_level(logging.WARNING):
        run(tmp_path, body)
    assert [record for record in caplog.records if record.exc_info] == []


def test_the_pages_certificate_is_still_used(tmp_path: Path, certificate: WebConfig) -> None:
    async def body(service: Service, host: str, port: int) -> None:
        context = ssl.create_default_context(cafile=f"{certificate.certificate}.crt")
        async with aiohttp.ClientSession() as browser, browser.get(url(service), ssl=context) as response:
            assert response.status == 200

    run(tmp_path, body, certificate)


def test_a_certificate_that_is_renewed_file_by_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What renews a certificate writes it and its key one after the other, and may set modes afterwards: the page keeps
    what it has until both belong together, and then takes them."""
    pem, key = tmp_path / "web.pem", tmp_path / "web.key"

    def make(name: str) -> tuple[bytes, bytes]:
        made, its_key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        what = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
        command = ["openssl", *what.split(), f"/CN={name}", "-keyout", str(its_key), "-out", str(made)]
        subprocess.run(command, check=True, capture_output=True)
        return made.read_bytes(), its_key.read_bytes()

    def served() -> str:
        """Return the name in the certificate that a new connection is shown."""
        trusting = ssl.create_default_context(cafile=str(tmp_path / "all.pem"))
        trusting.check_hostname = False
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(to_client, to_server)
        server = found.context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(3):
            for side in (client, server):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        shown = client.getpeercert()
        assert shown is not None
        return dict(pair for part in shown["subject"] for pair in part)["commonName"]

    old, new = make("old"), make("new")
    (tmp_path / "all.pem").write_bytes(old[0] + new[0])
    pem.write_bytes(old[0])
    key.write_bytes(old[1])
    found = web_serving.Certificate(pem, key)
    assert served() == "old"
    pem.write_bytes(new[0])
    found.look()
    assert "the web page keeps its certificate" in caplog.text
    assert served() == "old"
    found.look()
    assert caplog.text.count("keeps its certificate") == 1
    key.write_bytes(new[1])
    found.look()
    assert served() == "new"

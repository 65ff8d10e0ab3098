"""The page in headless Chromium, against a server with traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from smb3server.client.protocol.messages import ServerError
from smb3server.wire.create import CreateDisposition
from tools.web_pictures.browser import Browser, browser, why_not
from tools.web_pictures.scene import ADMIN, PASSWORD, READ_WRITE, USER, busy, serving, session, url

pytestmark = [pytest.mark.interop, pytest.mark.skipif(bool(why_not()), reason=why_not())]
MARKUP = "<img src=x onerror=document.title='broken'>"
"""A name that a page which is not careful would run."""


def look(folder: Path, what: Callable[[Browser, str], None], *, width: int = 1280) -> None:
    """Open a window on a busy server, and check that the browser complained about nothing."""

    def in_thread(address: str) -> None:
        with browser(width) as window:
            what(window, address)
            assert window.complaints() == []

    async def main() -> None:
        async with asyncio.timeout(90), serving(folder) as service, busy(service, 0.05):
            await asyncio.to_thread(in_thread, url(service))

    asyncio.run(main())


def test_the_page_shows_what_travels_by_rdma_and_why_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def what(window: Browser, address: str) -> None:
        window.log_on(address, ADMIN, PASSWORD)
        window.wait("document.querySelectorAll('.tile').length")
        assert "RDMA on 2 of 3 connections" in window.text("#verdict")
        # Live: bytes of a share grow.
        total = "document.querySelector('#shares td:nth-last-child(2)').textContent"
        first = window.run(total)
        window.wait(f"{total} !== {first!r}")
        window.visit("channels")
        window.wait("document.querySelectorAll('.channel.good').length === 2")
        bad = window.text(".channel.bad")
        assert "the client did not ask for the list of interfaces".lower() in bad.lower()
        assert "Remedy: Windows: Set-SmbClientConfiguration -EnableMultiChannel $true" in bad
        assert "RDMA, encrypted" in window.text("#channel-list")
        window.visit("interfaces")
        window.wait("document.querySelector('#interface-list').textContent.includes('127.0.0.1')")
        window.visit("log")
        window.wait("document.querySelector('#log-lines').textContent.includes('alice logged on')")

    look(tmp_path, what)


def test_a_wrong_password_is_told_and_a_right_one_logs_on(tmp_path: Path) -> None:
    def what(window: Browser, address: str) -> None:
        for user, password, reason in ((ADMIN, "wrong", "Wrong user"), (USER, PASSWORD, "not an administrator")):
            window.log_on(address, user, password)
            window.wait(f"document.getElementById('login-error').textContent.includes({reason!r})")
            assert window.run("document.getElementById('app').hidden")
        # The browser itself reports that the server answered 403.
        assert all("status of 403" in line for line in window.complaints())
        window.log_on(address, ADMIN, PASSWORD)
        window.wait("!document.getElementById('app').hidden")
        # A login survives loading the page again.
        window.open(address)
        window.wait("!document.getElementById('app').hidden")
        window.click("#logout")
        window.wait("!document.getElementById('login').hidden")
        window.complaints()

    look(tmp_path, what)


def test_a_button_ends_a_session_and_names_are_never_markup(tmp_path: Path) -> None:
    def what(window: Browser, address: str) -> None:
        window.log_on(address, ADMIN, PASSWORD)
        window.visit("files")
        window.wait("document.querySelector('#open-list').textContent.includes('onerror')")
        window.visit("sessions")
        window.wait("document.querySelectorAll('#session-list button').length === 1")
        window.click("#session-list button")
        window.driver.switch_to.alert.accept()
        window.wait("document.getElementById('message').textContent.includes('has ended')")
        window.wait("document.querySelectorAll('#session-list button').length === 0")
        assert window.run("document.title") != "broken"

    def in_thread(address: str) -> None:
        with browser() as window:
            what(window, address)
            assert window.complaints() == []

    async def main() -> None:
        async with asyncio.timeout(90), serving(tmp_path) as service, session(service, False) as opened:
            tree = await opened.tree_connect("media")
            await tree.create("a", READ_WRITE, CreateDisposition.OPEN_IF)
            file = next(iter(service.server.opens.by_id.values()))
            # No client can make this name: the page must not depend on that.
            file.path = (MARKUP,)
            await asyncio.to_thread(in_thread, url(service))
            with pytest.raises(ServerError):
                await tree.create("b", READ_WRITE, CreateDisposition.OPEN_IF)

    asyncio.run(main())


def test_nothing_is_wider_than_a_phone(tmp_path: Path) -> None:
    def what(window: Browser, address: str) -> None:
        window.log_on(address, ADMIN, PASSWORD)
        for section in ("overview", "channels", "sessions", "files", "interfaces", "log"):
            window.visit(section)
            window.wait("document.documentElement.scrollWidth <= window.innerWidth")

    look(tmp_path, what, width=390)

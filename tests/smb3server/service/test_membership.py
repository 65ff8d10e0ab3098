"""How often a member asks for central access policies."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("impacket", reason="needs the part domain")

from smb3server.domain.user import NoController
from smb3server.service.membership import POLICIES_EVERY, POLICIES_RETRY, follow


def test_a_silent_domain_is_asked_again_soon(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Exception | None] = [None, NoController("nobody answers"), OSError("the disk is full"), None]
    pauses: list[float] = []

    def refresh() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(follow(refresh, sleep))
    assert pauses == [POLICIES_EVERY, POLICIES_RETRY, POLICIES_RETRY, POLICIES_EVERY]
    assert "nobody answers" in caplog.text and "the disk is full" in caplog.text

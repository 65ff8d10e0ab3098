"""What ``smb3server status`` says of protected data: how it went by RDMA, or why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from smb3server.cli.status.tables import render
from smb3server.status import report
from smb3server.status.rdma_reasons import Code
from tests.lab.reports import collect
from tests.lab.transform_client import Offer
from tests.lab.transform_lab import Setup, TransformLab, play

Json = dict[str, Any]


async def logged_on(lab: TransformLab, offer: Offer) -> Json:
    client = await lab.client(offer)
    await client.log_on()
    return channel_of(lab)


def channel_of(lab: TransformLab) -> Json:
    (channel,) = collect(lab.server)["channels"]
    return dict(channel)


def shown(lab: TransformLab) -> str:
    return "\n".join(line.plain for line in render(report.collect(lab.server), 300))


@pytest.mark.parametrize(
    ("offer", "protection", "counters"),
    [(Offer(encrypt=True), "encrypted", (8192, 0)), (Offer(), "signed", (0, 8192)), (None, "clear", (0, 0))],
    ids=["encrypted", "signed", "clear"],
)
def test_how_data_went_by_rdma(offer: Offer | None, protection: str, counters: tuple[int, int]) -> None:
    async def work(lab: TransformLab) -> None:
        client = await lab.client(offer or Offer(ids=None))
        await client.log_on()
        client.signs = offer is not None
        assert channel_of(lab)["rdma_protection"] == ""
        assert (await client.write(bytes(4096))).status == 0
        assert await client.read(4096) == bytes(4096)
        channel = channel_of(lab)
        assert (channel["rdma"]["code"], channel["rdma"]["text"]) == ("used", f"RDMA, {protection}")
        assert channel["rdma_protection"] == protection
        assert channel["rdma_transforms"] == (["encryption", "signing"] if offer is not None else [])
        assert (channel["rdma_bytes_encrypted"], channel["rdma_bytes_signed"]) == counters
        (session,) = collect(lab.server)["sessions"]
        assert session["rdma_protection"] == [protection]
        assert f"RDMA, {protection}" in shown(lab)

    play(work)


def test_several_protections_on_one_connection() -> None:
    async def work(lab: TransformLab) -> None:
        client = await lab.client(Offer(encrypt=True))
        await client.log_on()
        assert (await client.write(b"data")).status == 0
        client.encrypts = False
        assert (await client.write(b"data")).status == 0
        assert channel_of(lab)["rdma"]["text"] == "RDMA, encrypted, signed"

    play(work)


@pytest.mark.parametrize(
    ("setup", "offer", "code"),
    [
        (Setup(session_encrypts=True), Offer(ids=None), Code.ENCRYPTED),
        (Setup(share_encrypts=True), Offer(ids=(2,)), Code.ENCRYPTED),
        (Setup(must_sign=True), Offer(ids=None), Code.SIGNED),
        (Setup(must_sign=True), Offer(ids=(1,)), Code.SIGNED),
        (Setup(must_sign=True, ids=(1,)), Offer(), Code.SERVER_TRANSFORMS_OFF),
        (Setup(session_encrypts=True, ids=()), Offer(), Code.SERVER_TRANSFORMS_OFF),
        (Setup(session_encrypts=True), Offer(), Code.NO_TRANSFERS),
        (Setup(must_sign=True), Offer(), Code.NO_TRANSFERS),
        (Setup(), Offer(ids=None), Code.NO_TRANSFERS),
    ],
)
def test_why_data_goes_inline(setup: Setup, offer: Offer, code: Code) -> None:
    """The first two are the client's, and what to do is named; the third is the administrator's."""

    async def work(lab: TransformLab) -> None:
        answer = (await logged_on(lab, offer))["rdma"]
        assert answer["code"] == code.value
        if code in (Code.ENCRYPTED, Code.SIGNED):
            assert "the client does not offer to" in answer["text"]
            assert "use a client with RDMA transforms" in answer["remedy"]
        if code is Code.SERVER_TRANSFORMS_OFF:
            assert ("encrypted" in answer["text"]) == setup.session_encrypts
            assert "rdma_transforms" in answer["remedy"]

    play(work, replace(setup))

"""Fabrics of a running server: several by name, errors for those that cannot serve, the choice printed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from smb3server.host import ROCE_UDP_PORT
from smbdirect.errors import ProviderError
from smbdirect.providers.verbs.device import why_unavailable
from tests.server.test_rdma_reasons import Scene, play

ADDRESS = "127.44.55.67"
"""A local address of this test alone: RoCEv2's UDP port is the same for everybody."""


def test_several_fabrics(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        fabrics = acted.service.fabrics
        assert [name for name, _ in fabrics.listeners] == ["iwarp", "roce"]
        assert [choice.reason.split(";")[0] for choice in fabrics.choices] == ["asked for", "asked for"]
        assert acted.service.server.rdma_addresses == {ADDRESS}

    play(tmp_path, scene, "iwarp,roce", ADDRESS)


def test_auto_serves_the_rest_and_says_why(tmp_path: Path) -> None:
    async def scene(acted: Scene) -> None:
        fabrics = acted.service.fabrics
        assert [name for name, _ in fabrics.listeners] == ["iwarp"]
        (problem,) = [text for text in fabrics.problems if text.startswith("roce")]
        assert f"UDP port {ROCE_UDP_PORT} belongs to" in problem
        assert f"(process {os.getpid()})" in problem
        assert "remedy: stop it" in problem

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((ADDRESS, ROCE_UDP_PORT))
        play(tmp_path, scene, "auto", ADDRESS)


async def never(acted: Scene) -> None:
    raise AssertionError("the server must not start")


def test_named_fabric_with_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProviderError, match=rf"iwarp not served on {ADDRESS}: TCP port {port} belongs to .*remedy"):
            play(tmp_path, never, "iwarp", ADDRESS, rdma_port=port)


@pytest.mark.skipif(why_unavailable() is None, reason="this machine has an RDMA device")
def test_named_fabric_without_its_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"verbs not served: no RDMA device .*rdma link add"):
        play(tmp_path, never, "iwarp,verbs", ADDRESS)

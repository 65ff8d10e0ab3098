"""A listener on a device's port: what it makes of events, with a connection manager that is made up."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from smbdirect.providers.base import CloseCause, CloseReason
from smbdirect.providers.verbs import abi, device, provider
from smbdirect.providers.verbs.provider import VerbsListener

PORT = 2
DOWN = CloseReason(CloseCause.DEVICE, "port 2 of a0 is down")


class Library:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def rdma_get_src_port(self, cm_id: int) -> int:
        return 0x4515  # 5445 in network order

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append(name)


class Device:
    name = "a0"


class Events:
    def __init__(self) -> None:
        self.members: set[Any] = set()


class Cm:
    def __init__(self) -> None:
        self.library = Library()
        self.libraries = abi.Libraries(None, self.library)  # type: ignore[arg-type]
        self.handlers: dict[int, Any] = {}
        self.events = Events()

    def device_of(self, cm_id: int) -> tuple[Device, None]:
        return Device(), None


class Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = ctypes.create_string_buffer(400)
        self.cm_id = ctypes.addressof(self.memory)
        self.memory[abi.CM_ID_VERBS] = 1
        self.memory[abi.CM_ID_PORT] = PORT
        self.cm = Cm()
        self.requests: list[Any] = []
        self.said: list[str] = []
        self.active = False
        monkeypatch.setattr(provider, "_Connection", lambda cm, cm_id: cm_id)
        monkeypatch.setattr(provider, "VerbsConnectionRequest", lambda connection, *_: connection)
        monkeypatch.setattr(device, "is_active", lambda name, port: (name, port) == ("a0", PORT) and self.active)
        cm: Any = self.cm
        self.listener = VerbsListener(cm, self.cm_id, "192.0.2.1", self.requests.append)
        self.listener.on_change = lambda: self.said.append(self.listener.down)

    def event(self, kind: int, identifier: int = 7) -> None:
        self.cm.handlers[self.cm_id](abi.CmEvent(id=identifier, event=kind), b"")


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_where_it_listens(scene: Scene) -> None:
    assert scene.listener.address == ("192.0.2.1", 5445)
    assert (scene.listener.port, scene.listener.down) == (PORT, "")
    assert scene.cm.events.members == {scene.listener}
    scene.event(abi.CM_CONNECT_REQUEST)
    assert scene.requests == [7]


def test_down_and_back(scene: Scene) -> None:
    scene.listener.lost(DOWN)
    scene.listener.restored()
    assert scene.said == ["port 2 of a0 is down", ""]


def test_requests_while_the_port_is_down_are_rejected(scene: Scene) -> None:
    """A device may still reach itself."""
    scene.listener.lost(DOWN)
    scene.event(abi.CM_CONNECT_REQUEST)
    assert scene.requests == []
    assert scene.cm.library.calls == ["rdma_reject", "rdma_destroy_id"]
    assert scene.listener.down


def test_a_request_that_comes_though_no_event_said_the_port_is_back(scene: Scene) -> None:
    scene.listener.lost(DOWN)
    scene.active = True
    scene.event(abi.CM_CONNECT_REQUEST)
    assert scene.requests == [7]
    assert scene.said[-1] == ""


def test_a_device_that_is_removed_does_not_come_back(scene: Scene) -> None:
    scene.event(abi.CM_DEVICE_REMOVAL)
    assert scene.said == ["a0: device removed"]
    assert scene.cm.library.calls == ["rdma_destroy_id"]
    assert not scene.cm.handlers and not scene.cm.events.members
    scene.listener.restored()
    assert scene.listener.down == "a0: device removed"

"""Which connections share a protection domain, and that those of one connection go with it."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from smbdirect.errors import ProviderError
from smbdirect.providers.verbs import abi, provider


class Device:
    def __init__(self, iwarp_nic: bool) -> None:
        self.read_sink_needs_remote_write = iwarp_nic


class Domain:
    made: list[Domain]

    def __init__(self, device: Device) -> None:
        self.closed = 0
        self.made.append(self)

    def close(self) -> None:
        self.closed += 1


class Endpoint:
    fails = False

    def __init__(self, device: Device, domain: Any, cm_id: int, loop: asyncio.AbstractEventLoop) -> None:
        if self.fails:
            raise ProviderError("no memory for a queue pair")
        self.domain = domain
        self.queue_pair = 1
        self.on_released: Callable[[Any], None] = lambda _: None


class Cm:
    def __init__(self, iwarp_nic: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.handlers: dict[int, Any] = {}
        self.device = Device(iwarp_nic)
        self.shared = object()
        self.events = self
        self.members: set[Any] = set()

    def device_of(self, cm_id: int) -> tuple[Device, object]:
        return self.device, self.shared


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Domain.made = []
    monkeypatch.setattr(provider, "Domain", Domain)
    monkeypatch.setattr(provider, "VerbsEndpoint", Endpoint)


def connection(cm: Any) -> Any:
    memory = ctypes.create_string_buffer(400)
    memory[abi.CM_ID_PORT] = 1
    made: Any = provider._Connection(cm, ctypes.addressof(memory))
    made.memory = memory  # kept as long
    return made


@pytest.mark.parametrize(
    ("iwarp_nic", "connecting", "own"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_who_has_a_domain_of_its_own(iwarp_nic: bool, connecting: bool, own: bool) -> None:
    async def main() -> None:
        cm = Cm(iwarp_nic)
        made = [connection(cm) for _ in range(2)]
        domains = [entry.make_endpoint(connecting).domain for entry in made]
        assert (domains[0] is not domains[1]) == own
        assert all((domain is cm.shared) != own for domain in domains)
        assert all(entry in cm.members for entry in made)
        made[0].endpoint.on_released(made[0].endpoint)
        assert [domain.closed for domain in Domain.made] == ([1, 0] if own else [])
        assert made[0] not in cm.members and made[1] in cm.members

    asyncio.run(main())


def test_no_domain_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "fails", True)

    async def main() -> None:
        cm = Cm(True)
        with pytest.raises(ProviderError, match="queue pair"):
            connection(cm).make_endpoint(False)
        assert [domain.closed for domain in Domain.made] == [1]

    asyncio.run(main())

"""Messages of WS-Discovery, which any host on the link may send."""

from __future__ import annotations

from collections.abc import Iterator

from smb3server.discovery.wsd_messages import EVERYBODY, GET, PROBE, RESOLVE, TargetService, envelope, read_request
from tools.fuzz.target import Target

ENDPOINT = "urn:uuid:11111111-2222-3333-4444-555555555555"
PLACES = ("http://192.0.2.1:5357/x",)
MOST = 4096
"""Bytes of an answer, however long the question is."""


def _run(data: bytes) -> None:
    service = TargetService("FILES", "WORKGROUP", ENDPOINT, "1.0", 1)
    request = read_request(data)
    for answer in (service.answer(request, PLACES), service.metadata(request)):
        assert answer is None or len(answer) <= MOST


def _seeds() -> Iterator[bytes]:
    reference = f"<wsa:EndpointReference><wsa:Address>{ENDPOINT}</wsa:Address></wsa:EndpointReference>"
    yield envelope(PROBE, EVERYBODY, "<wsd:Probe><wsd:Types>wsdp:Device pub:Computer</wsd:Types></wsd:Probe>")
    yield envelope(PROBE, EVERYBODY, "<wsd:Probe/>")
    yield envelope(RESOLVE, EVERYBODY, f"<wsd:Resolve>{reference}</wsd:Resolve>")
    yield envelope(GET, ENDPOINT, "")
    yield b'<!DOCTYPE a [<!ENTITY x "ha">]><a>&x;</a>'


TARGET = Target(_run, _seeds, declared=(ValueError,))

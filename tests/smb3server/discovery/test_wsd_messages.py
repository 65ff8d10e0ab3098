"""What the target service answers, and what it ignores. [WSD] [DPWS] [MS-PBSD 2.2]"""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from smb3server.discovery.wsd_limits import IN_ALL, PER_SOURCE, AnswerLimits
from smb3server.discovery.wsd_messages import (
    ANONYMOUS,
    DPWS,
    EVERYBODY,
    GET,
    MEX,
    PROBE,
    PUB,
    RESOLVE,
    SOAP,
    WSA,
    WSD,
    TargetService,
    envelope,
    read_request,
)

ENDPOINT = "urn:uuid:11111111-2222-3333-4444-555555555555"
PLACES = ("http://192.0.2.1:5357/x",)


def target() -> TargetService:
    return TargetService("FILES", "WORK&GROUP", ENDPOINT, "1.0", 7)


def ask(action: str, body: str, to: str = EVERYBODY) -> bytes | None:
    return target().answer(read_request(envelope(action, to, body)), PLACES)


def probe(types: str = "", more: str = "") -> bytes | None:
    return ask(PROBE, f"<wsd:Probe>{types}{more}</wsd:Probe>")


@pytest.mark.parametrize("types", ["", "wsdp:Device", "pub:Computer", "pub:Computer wsdp:Device"])
def test_a_probe_for_computers_is_answered(types: str) -> None:
    answer = probe(f"<wsd:Types>{types}</wsd:Types>" if types else "")
    assert answer is not None
    match = ET.fromstring(answer).find(f"{{{SOAP}}}Body/{{{WSD}}}ProbeMatches/{{{WSD}}}ProbeMatch")
    assert match is not None
    assert match.findtext(f"{{{WSA}}}EndpointReference/{{{WSA}}}Address") == ENDPOINT
    assert match.findtext(f"{{{WSD}}}XAddrs") == PLACES[0]


def test_a_probe_for_something_else_is_not() -> None:
    assert probe("<wsd:Types>wsdp:Printer</wsd:Types>") is None
    assert probe("<wsd:Types>pub:Computer wsdp:Printer</wsd:Types>") is None
    assert probe("", "<wsd:Scopes>ldap:///ou=here</wsd:Scopes>") is None
    with pytest.raises(ValueError, match="unknown prefix"):
        probe("<wsd:Types>nobody:Device</wsd:Types>")


def test_only_the_own_endpoint_is_resolved() -> None:
    def resolve(endpoint: str) -> bytes | None:
        reference = f"<wsa:EndpointReference><wsa:Address>{endpoint}</wsa:Address></wsa:EndpointReference>"
        return ask(RESOLVE, f"<wsd:Resolve>{reference}</wsd:Resolve>")

    assert resolve(ENDPOINT) is not None
    assert resolve(ENDPOINT.replace("1", "2")) is None
    assert ask(RESOLVE, "") is None


def test_hello_and_answers_of_others_have_no_answer() -> None:
    other = target()
    for message in (other.hello(PLACES), other.bye()):
        assert target().answer(read_request(message), PLACES) is None


def test_the_answer_refers_to_its_question_and_messages_are_numbered() -> None:
    service = target()
    request = read_request(envelope(PROBE, EVERYBODY, "<wsd:Probe/>"))
    numbers = []
    for _ in range(2):
        answer = service.answer(request, PLACES)
        assert answer is not None
        root = ET.fromstring(answer)
        assert root.findtext(f"{{{SOAP}}}Header/{{{WSA}}}RelatesTo") == request.message_id
        sequence = root.find(f"{{{SOAP}}}Header/{{{WSD}}}AppSequence")
        assert sequence is not None
        numbers.append((sequence.get("InstanceId"), sequence.get("MessageNumber")))
    assert numbers == [("7", "1"), ("7", "2")]


def test_a_stranger_cannot_choose_where_answers_go_or_how_long_they_are() -> None:
    message = envelope(PROBE, EVERYBODY, "<wsd:Probe/>")

    def with_reply_to(address: str) -> bytes:
        reply_to = f"<wsa:ReplyTo><wsa:Address>{address}</wsa:Address></wsa:ReplyTo></soap:Header>"
        return message.replace(b"</soap:Header>", reply_to.encode())

    assert read_request(with_reply_to(ANONYMOUS)).action == PROBE
    with pytest.raises(ValueError, match="ReplyTo"):
        read_request(with_reply_to("soap.udp://198.51.100.1:3702"))
    with pytest.raises(ValueError, match="MessageID"):
        read_request(message.replace(b"urn:uuid:", b"x" * 300))


def test_the_metadata_is_that_of_a_computer() -> None:
    answer = target().metadata(read_request(envelope(GET, ENDPOINT, "")))
    assert answer is not None
    root = ET.fromstring(answer)
    host = root.find(f"{{{SOAP}}}Body/{{{MEX}}}Metadata/{{{MEX}}}MetadataSection/{{{DPWS}}}Relationship/{{{DPWS}}}Host")
    assert host is not None
    assert host.findtext(f"{{{PUB}}}Computer") == "FILES/Workgroup:WORK&GROUP"
    assert target().metadata(read_request(envelope(GET, ENDPOINT + "0", ""))) is None
    assert target().metadata(read_request(envelope(PROBE, ENDPOINT, ""))) is None


def test_answers_are_limited_for_each_source_and_in_all() -> None:
    limits = AnswerLimits(0.0)
    assert sum(limits.admits("192.0.2.1", 0.0) for _ in range(50)) == PER_SOURCE
    assert limits.admits("192.0.2.2", 0.0)
    assert limits.admits("192.0.2.1", 1.0)
    limits = AnswerLimits(0.0)
    assert sum(limits.admits(f"10.0.{number // 256}.{number % 256}", 0.0) for number in range(2000)) == IN_ALL


def test_a_message_is_answered_once() -> None:
    limits = AnswerLimits(0.0)
    assert [limits.is_new(name) for name in ("a", "b", "a")] == [True, True, False]

"""Messages of WS-Discovery and of the metadata of a computer, as bytes in and out.

[WSD]: Web Services Dynamic Discovery, April 2005. [DPWS]: Devices Profile for Web Services, February 2006.
[MS-PBSD]: what a computer says about itself. A server is a target service in the words of [WSD].
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape

from smb3server.discovery.soap import Element, Name, parse

SOAP = "http://www.w3.org/2003/05/soap-envelope"
WSA = "http://schemas.xmlsoap.org/ws/2004/08/addressing"
WSD = "http://schemas.xmlsoap.org/ws/2005/04/discovery"
DPWS = "http://schemas.xmlsoap.org/ws/2006/02/devprof"
MEX = "http://schemas.xmlsoap.org/ws/2004/09/mex"
TRANSFER = "http://schemas.xmlsoap.org/ws/2004/09/transfer"
PUB = "http://schemas.microsoft.com/windows/pub/2005/07"
PNPX = "http://schemas.microsoft.com/windows/pnpx/2005/10"
ANONYMOUS = f"{WSA}/role/anonymous"
EVERYBODY = "urn:schemas-xmlsoap-org:ws:2005:04:discovery"
"""Receiver of multicast messages. [WSD 2.4]"""
PROBE, RESOLVE, GET = f"{WSD}/Probe", f"{WSD}/Resolve", f"{TRANSFER}/Get"
TYPES: frozenset[Name] = frozenset({(DPWS, "Device"), (PUB, "Computer")})
"""What this server is. [DPWS 4.1] [MS-PBSD 2.2]"""
MAX_ID = 256
"""Characters of a MessageID. It comes back in the reply, which must not grow by it."""

_PREFIXES = {"soap": SOAP, "wsa": WSA, "wsd": WSD, "wsdp": DPWS, "wsx": MEX, "pub": PUB, "pnpx": PNPX}
_DECLARATIONS = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in _PREFIXES.items())
_TYPES = "<wsd:Types>wsdp:Device pub:Computer</wsd:Types>"


class Request(NamedTuple):
    """A message that may want an answer."""

    action: str
    message_id: str
    to: str
    body: Element


def read_request(data: bytes) -> Request:
    """Read the envelope of a message. Raises ``ValueError`` if it is none, or one that must not be answered."""
    envelope = parse(data)
    header, body = envelope.find((SOAP, "Header")), envelope.find((SOAP, "Body"))
    if envelope.name != (SOAP, "Envelope") or header is None or body is None:
        raise ValueError("not a SOAP envelope")
    reply_to = header.find((WSA, "ReplyTo"))
    # Answers go where the message came from. An answer to an address in a message would let a stranger choose it.
    if reply_to is not None and reply_to.text_of((WSA, "Address")) != ANONYMOUS:
        raise ValueError("ReplyTo is not the sender")
    message_id = header.text_of((WSA, "MessageID"))
    if not message_id or len(message_id) > MAX_ID or not message_id.isprintable():
        raise ValueError("no MessageID, or a very long one")
    return Request(header.text_of((WSA, "Action")), message_id, header.text_of((WSA, "To")), body)


def _new_id() -> str:
    return uuid.uuid4().urn


def envelope(action: str, to: str, body: str, *, relates_to: str = "", sequence: str = "") -> bytes:
    """Return a whole message. ``body`` and ``sequence`` are XML, everything else is text."""
    related = f"<wsa:RelatesTo>{escape(relates_to)}</wsa:RelatesTo>" if relates_to else ""
    return (
        f'<?xml version="1.0" encoding="utf-8"?><soap:Envelope {_DECLARATIONS}><soap:Header>'
        f"<wsa:To>{escape(to)}</wsa:To><wsa:Action>{escape(action)}</wsa:Action>"
        f"<wsa:MessageID>{_new_id()}</wsa:MessageID>{related}{sequence}"
        f"</soap:Header><soap:Body>{body}</soap:Body></soap:Envelope>"
    ).encode()


@dataclass(slots=True)
class TargetService:
    """What a server says of itself, and which questions it answers. It knows no sockets. [WSD 1.4]"""

    name: str
    workgroup: str
    endpoint: str
    """Its address that never changes, ``urn:uuid:...``. [WSD 2.6]"""
    version: str
    instance: int
    """Grows with each start. [WSD 7, AppSequence/@InstanceId]"""
    metadata_version: int = 1
    """Grows when what a ``Get`` returns has changed. [WSD 4.1]"""
    _number: int = field(default=0, init=False)

    def _sequence(self) -> str:
        self._number += 1
        return f'<wsd:AppSequence InstanceId="{self.instance}" MessageNumber="{self._number}"/>'

    def _endpoint(self) -> str:
        return f"<wsa:EndpointReference><wsa:Address>{self.endpoint}</wsa:Address></wsa:EndpointReference>"

    def _match(self, locations: Iterable[str]) -> str:
        places = " ".join(locations)
        where = f"<wsd:XAddrs>{escape(places)}</wsd:XAddrs>" if places else ""
        return f"{self._endpoint()}{_TYPES}{where}<wsd:MetadataVersion>{self.metadata_version}</wsd:MetadataVersion>"

    def hello(self, locations: Iterable[str]) -> bytes:
        """Return the message that announces it. ``locations``: URLs of its metadata. [WSD 4.1]"""
        body = f"<wsd:Hello>{self._match(locations)}</wsd:Hello>"
        return envelope(f"{WSD}/Hello", EVERYBODY, body, sequence=self._sequence())

    def bye(self) -> bytes:
        """Return the message that says that it ends. [WSD 4.2]"""
        body = f"<wsd:Bye>{self._endpoint()}</wsd:Bye>"
        return envelope(f"{WSD}/Bye", EVERYBODY, body, sequence=self._sequence())

    def answer(self, request: Request, locations: Iterable[str]) -> bytes | None:
        """Return the answer to a Probe or a Resolve; None if it is not for this server. Raises ``ValueError``."""
        if request.action == PROBE and self._matches(request.body.find((WSD, "Probe"))):
            kind = "Probe"
        elif request.action == RESOLVE and self._is_meant(request.body.find((WSD, "Resolve"))):
            kind = "Resolve"
        else:
            return None
        match = f"<wsd:{kind}Match>{self._match(locations)}</wsd:{kind}Match>"
        return envelope(
            f"{WSD}/{kind}Matches",
            ANONYMOUS,
            f"<wsd:{kind}Matches>{match}</wsd:{kind}Matches>",
            relates_to=request.message_id,
            sequence=self._sequence(),
        )

    @staticmethod
    def _matches(probe: Element | None) -> bool:
        """Return whether this server has all types and scopes that are looked for. It has no scopes. [WSD 5.1]"""
        if probe is None or probe.text_of((WSD, "Scopes")):
            return False
        types = probe.find((WSD, "Types"))
        return types is None or TYPES.issuperset(types.names())

    def _is_meant(self, resolve: Element | None) -> bool:
        """Return whether the endpoint that is looked for is this server. [WSD 6.1]"""
        reference = resolve.find((WSA, "EndpointReference")) if resolve is not None else None
        return reference is not None and reference.text_of((WSA, "Address")) == self.endpoint

    def metadata(self, request: Request) -> bytes | None:
        """Return the answer to a Get: the name and the kind of this computer. None for anything else.

        [DPWS 5] [MS-PBSD 2.2]
        """
        if request.action != GET or request.to != self.endpoint:
            return None
        name = escape(self.name)
        # A slash, although [MS-PBSD 2.2] has a backslash for workgroups: its examples, wsdd and wsdd2 have a slash.
        computer = f"{name}/Workgroup:{escape(self.workgroup)}"
        device = (
            f"<wsdp:ThisDevice><wsdp:FriendlyName>{name}</wsdp:FriendlyName>"
            f"<wsdp:FirmwareVersion>{escape(self.version)}</wsdp:FirmwareVersion>"
            f"<wsdp:SerialNumber>1</wsdp:SerialNumber></wsdp:ThisDevice>"
        )
        model = (
            "<wsdp:ThisModel><wsdp:Manufacturer>smb3server</wsdp:Manufacturer>"
            "<wsdp:ModelName>smb3server</wsdp:ModelName>"
            "<pnpx:DeviceCategory>Computers</pnpx:DeviceCategory></wsdp:ThisModel>"
        )
        host = (
            f'<wsdp:Relationship Type="{DPWS}/host"><wsdp:Host>{self._endpoint()}'
            f"<wsdp:Types>pub:Computer</wsdp:Types><wsdp:ServiceId>{self.endpoint}</wsdp:ServiceId>"
            f"<pub:Computer>{computer}</pub:Computer></wsdp:Host></wsdp:Relationship>"
        )
        sections = {"ThisDevice": device, "ThisModel": model, "Relationship": host}
        body = "".join(
            f'<wsx:MetadataSection Dialect="{DPWS}/{dialect}">{section}</wsx:MetadataSection>'
            for dialect, section in sections.items()
        )
        return envelope(
            f"{TRANSFER}/GetResponse", ANONYMOUS, f"<wsx:Metadata>{body}</wsx:Metadata>", relates_to=request.message_id
        )

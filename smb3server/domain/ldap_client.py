"""Reads and changes a controller's directory by LDAP, sealed by Kerberos. [RFC 4511, RFC 4752]

A join needs no more. Whatever comes from the controller is bounded before it is read.
"""

from __future__ import annotations

import importlib
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

LDAP_PORT = 389
MAX_MESSAGE = 1 << 20
"""Most bytes of one message of the controller."""
_SEALS = 4
"""The layer "confidentiality". [RFC 4752 3.3]"""
SUCCESS, SASL_IN_PROGRESS, NO_SUCH_OBJECT, ALREADY_EXISTS = 0, 14, 32, 68
BASE, SUBTREE = 0, 2
ADD, DELETE, REPLACE = 0, 1, 2
Entry = dict[str, list[bytes]]
"""Values by the attribute's name in lower case."""


class LdapError(Exception):
    """The controller has refused a request, or its answer is wrong."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code
        """resultCode. -1 means that the answer is wrong."""


class LdapConnection:
    """One connection to a controller. Close it after any exception but ``LdapError`` with a code."""

    def __init__(self, address: str, timeout: float) -> None:
        """Connect. ``timeout``: seconds for each request. Raises ``OSError``."""
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._socket = socket.create_connection((address, LDAP_PORT), timeout=timeout)
        self._number = 0
        self._context: Any = None
        """Context of GSS-API, once messages are sealed."""
        self._plain = bytearray()
        """What has been received and not been read."""

    def close(self) -> None:
        self._socket.close()

    def log_on(self, host: str, realm: str, credentials: Any) -> None:
        """Log on to the controller ``host`` by Kerberos as the user of ``credentials`` (``gssapi``), and seal all that
        follows.

        Raises ``LdapError``, ``OSError``, and the errors of ``gssapi``. [RFC 4752 3.1]
        """
        import gssapi

        wanted = gssapi.RequirementFlag
        context = gssapi.SecurityContext(
            # With its realm, so that no name of a host is looked up, forwards or backwards.
            name=gssapi.Name(f"ldap/{host}@{realm}", gssapi.NameType.kerberos_principal),
            creds=credentials,
            flags=wanted.mutual_authentication | wanted.integrity | wanted.confidentiality,
            mech=gssapi.MechType.kerberos,
            usage="initiate",
        )
        token = context.step()
        while not context.complete:
            token = context.step(self._sasl(token or b"")) or b""
        offered = context.unwrap(self._sasl(token or b"")).message
        if len(offered) != 4 or not offered[0] & _SEALS:
            raise LdapError("the controller does not seal messages")
        chosen = bytes((_SEALS,)) + MAX_MESSAGE.to_bytes(3, "big")
        self._sasl(context.wrap(chosen, True).message, last=True)
        self._context = context

    def _sasl(self, token: bytes, last: bool = False) -> bytes:
        """Send one token of the bind, and return the controller's."""
        from impacket.ldap import ldapasn1

        request = ldapasn1.BindRequest()
        request["version"] = 3
        request["name"] = b""
        request["authentication"]["sasl"]["mechanism"] = b"GSSAPI"
        request["authentication"]["sasl"]["credentials"] = token
        (answer,) = self._ask("bindRequest", request, "bindResponse")
        code = int(answer["resultCode"])
        if code != (SUCCESS if last else SASL_IN_PROGRESS):
            raise LdapError(f"the controller refuses the logon: {_words(answer)}", code)
        return bytes(answer["serverSaslCreds"]) if answer["serverSaslCreds"].hasValue() else b""

    def search(
        self,
        base: str,
        attributes: Sequence[str],
        where: Sequence[tuple[str, str]] = (),
        scope: int = SUBTREE,
        most: int = 100,
    ) -> list[tuple[str, Entry]]:
        """Return names and values of the entries in which one of the attributes of ``where`` has its value. Without any
        these are all entries. More than ``most`` entries are an error.

        Raises ``LdapError`` and ``OSError``. [RFC 4511 4.5]
        """
        from impacket.ldap import ldapasn1

        request = ldapasn1.SearchRequest()
        request["baseObject"] = base
        request["scope"] = scope
        request["derefAliases"] = 0
        request["sizeLimit"] = most
        request["timeLimit"] = 0
        request["typesOnly"] = False
        wanted = [equal(attribute, value.encode()) for attribute, value in where]
        if not wanted:
            request["filter"]["present"] = "objectClass"
        elif len(wanted) == 1:
            request["filter"] = wanted[0]
        else:
            request["filter"]["or"].setComponents(*wanted)
        request["attributes"].setComponents(*attributes)
        found: list[tuple[str, Entry]] = []
        for answer in self._ask("searchRequest", request, "searchResDone"):
            if "objectName" in answer:
                values = {
                    str(one["type"]).lower(): [bytes(value) for value in one["vals"]] for one in answer["attributes"]
                }
                found.append((str(answer["objectName"]), values))
            elif "resultCode" in answer:
                _check(answer)
        return found

    def add(self, name: str, attributes: Mapping[str, Sequence[bytes]]) -> None:
        """Add an entry. Raises ``LdapError`` and ``OSError``. [RFC 4511 4.7]"""
        from impacket.ldap import ldapasn1

        request = ldapasn1.AddRequest()
        request["entry"] = name
        for index, (kind, values) in enumerate(attributes.items()):
            request["attributes"][index]["type"] = kind
            request["attributes"][index]["vals"].setComponents(*values)
        _check(self._ask("addRequest", request, "addResponse")[-1])

    def modify(self, name: str, changes: Sequence[tuple[int, str, Sequence[bytes]]]) -> None:
        """Change the attributes of an entry. Raises ``LdapError`` and ``OSError``. [RFC 4511 4.6]"""
        from impacket.ldap import ldapasn1

        request = ldapasn1.ModifyRequest()
        request["object"] = name
        for index, (operation, kind, values) in enumerate(changes):
            request["changes"][index]["operation"] = operation
            request["changes"][index]["modification"]["type"] = kind
            request["changes"][index]["modification"]["vals"].setComponents(*values)
        _check(self._ask("modifyRequest", request, "modifyResponse")[-1])

    def delete(self, name: str) -> None:
        """Remove an entry. Raises ``LdapError`` and ``OSError``. [RFC 4511 4.8]"""
        from impacket.ldap import ldapasn1

        _check(self._ask("delRequest", ldapasn1.DelRequest(name), "delResponse")[-1])

    def _ask(self, kind: str, request: Any, last: str) -> list[Any]:
        """Send a request, and return the answers up to the last one."""
        from impacket.ldap import ldapasn1

        encoder = importlib.import_module("pyasn1.codec.ber.encoder")
        self._deadline = time.monotonic() + self._timeout
        self._number += 1
        message = ldapasn1.LDAPMessage()
        message["messageID"] = self._number
        message["protocolOp"].setComponentByName(kind, request)
        self._send(encoder.encode(message))
        found: list[Any] = []
        total = 0
        while True:
            data = self._message()
            total += len(data)
            if total > 4 * MAX_MESSAGE:
                raise LdapError("an answer that is too long")
            answer = decoded(data)
            if int(answer["messageID"]) != self._number:
                raise LdapError("not the answer to this request")
            name = answer["protocolOp"].getName()
            if name not in (last, "searchResEntry", "searchResRef"):
                raise LdapError(f"an answer of kind {name}")
            if name != "searchResRef":
                found.append(answer["protocolOp"].getComponent())
            if name == last:
                return found

    def _send(self, data: bytes) -> None:
        if self._context is not None:
            wrapped = self._context.wrap(data, True)
            data = len(wrapped.message).to_bytes(4, "big") + wrapped.message
        self._socket.settimeout(max(self._deadline - time.monotonic(), 0.01))
        self._socket.sendall(data)

    def _message(self) -> bytes:
        """Return the next LDAPMessage."""
        while (size := _size(self._plain)) is None or len(self._plain) < size:
            self._plain += self._sealed() if self._context is not None else self._some(4096)
        data = bytes(self._plain[:size])
        del self._plain[:size]
        return data

    def _sealed(self) -> bytes:
        """Return what one sealed buffer holds. [RFC 4422 3.7]"""
        size = int.from_bytes(self._exactly(4), "big")
        if not 0 < size <= MAX_MESSAGE:
            raise LdapError(f"a sealed buffer of {size} bytes")
        opened = self._context.unwrap(self._exactly(size))
        if not opened.encrypted:
            raise LdapError("an answer that is not sealed")
        return bytes(opened.message)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._some(size - len(data))
        return bytes(data)

    def _some(self, most: int) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left)
        data = self._socket.recv(most)
        if not data:
            raise ConnectionResetError("the controller has closed the connection")
        return data


def equal(attribute: str, value: bytes) -> Any:
    """Return the filter for an attribute that has a value. [RFC 4511 4.5.1.7]"""
    from impacket.ldap import ldapasn1

    found = ldapasn1.Filter()
    found["equalityMatch"]["attributeDesc"] = attribute
    found["equalityMatch"]["assertionValue"] = value
    return found


def _size(data: bytes | bytearray) -> int | None:
    """Return the size of the BER sequence that begins here, or None if too little of it is known. Raises
    ``LdapError``."""
    if len(data) < 2:
        return None
    if data[0] != 0x30:
        raise LdapError("not an LDAP message")
    if data[1] < 0x80:
        return 2 + data[1]
    width = data[1] & 0x7F
    if not 0 < width <= 4:
        raise LdapError("an LDAP message without a length")
    if len(data) < 2 + width:
        return None
    size = 2 + width + int.from_bytes(data[2 : 2 + width], "big")
    if size > MAX_MESSAGE:
        raise LdapError(f"an LDAP message of {size} bytes")
    return size


def decoded(data: bytes) -> Any:
    """Return an LDAPMessage. Raises ``LdapError`` for a malformed one."""
    from impacket.ldap import ldapasn1

    try:
        return importlib.import_module("pyasn1.codec.ber.decoder").decode(data, asn1Spec=ldapasn1.LDAPMessage())[0]
    except Exception as error:
        # The decoder may raise any exception for malformed input, and its text has the whole schema.
        raise LdapError("a malformed LDAP message") from error


def _words(answer: Any) -> str:
    text = bytes(answer["diagnosticMessage"]).decode("utf-8", "replace").rstrip("\0")
    return f"{answer['resultCode'].prettyPrint()}{f' ({text})' if text else ''}"


def _check(answer: Any) -> None:
    code = int(answer["resultCode"])
    if code != SUCCESS:
        raise LdapError(f"the controller refuses: {_words(answer)}", code)


def escaped(value: str) -> str:
    """Return a value as it stands in a distinguished name. [RFC 4514 2.4]"""
    text = "".join(f"\\{char}" if char in '\\,+"<>;=' else char for char in value)
    return f"\\{text}" if text[:1] in ("#", " ") else text

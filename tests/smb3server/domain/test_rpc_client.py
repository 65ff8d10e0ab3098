"""Calls over TCP, to a controller that answers as the test wants."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from smb3server.domain import rpc_client
from smb3server.domain.rpc_client import Fault, Interface, RpcConnection, RpcError
from smb3server.domain.secure_channel import Sealing
from smb3server.rpc.dcerpc import NDR

INTERFACE = Interface("12345678-1234-abcd-ef00-01234567cffb", 1)
Answer = Callable[[bytes], "list[bytes]"]


def pdu(kind: int, body: bytes, call: int, flags: int = 3, auth: bytes = b"", auth_size: int | None = None) -> bytes:
    size = len(auth) - 8 if auth else 0
    fixed = struct.pack("<BBBB4sHHI", 5, 0, kind, flags, b"\x10\0\0\0", 16 + len(body) + len(auth), size, call)
    if auth_size is not None:
        fixed = fixed[:10] + struct.pack("<H", auth_size) + fixed[12:]
    return fixed + body + auth


ACK = struct.pack("<HHI", 4280, 4280, 1) + struct.pack("<H4sxx", 4, b"135\0") + b"\1\0\0\0" + bytes(4) + NDR


def response(stub: bytes, call: int, flags: int = 3) -> bytes:
    return pdu(2, struct.pack("<IHH", len(stub), 0, 0) + stub, call, flags)


class Controller:
    """Listens on a free port, and sends the answers of ``answers``, one list for each request."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.answers: list[Answer] = [lambda request: [pdu(12, ACK, 0)]]
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self.listener.accept()
        # The member ends the connection as soon as an answer is wrong.
        with connection, contextlib.suppress(ConnectionError):
            for answer in self.answers:
                request = b""
                while len(request) < 16 or not request[3] & 2:
                    head = connection.recv(16, socket.MSG_WAITALL)
                    if len(head) < 16:
                        return
                    size = int.from_bytes(head[8:10], "little")
                    request = head + connection.recv(size - 16, socket.MSG_WAITALL)
                    self.requests.append(request)
                for part in answer(request):
                    connection.sendall(part)
            connection.recv(1)


@pytest.fixture
def controller() -> Iterator[Controller]:
    found = Controller()
    yield found
    found.listener.close()


def connect(controller: Controller, seconds: float = 5.0) -> RpcConnection:
    return RpcConnection("127.0.0.1", controller.port, time.monotonic() + seconds)


def test_answers_in_several_fragments_are_put_together(controller: Controller) -> None:
    controller.answers.append(lambda request: [response(b"abc", 1, 1), response(b"de", 1, 0), response(b"f", 1, 2)])
    connection = connect(controller)
    connection.bind(INTERFACE)
    assert connection.call(7, bytes(9000)) == b"abcdef"
    # The request itself has several, none longer than the controller takes.
    sizes = [len(request) for request in controller.requests[1:]]
    assert len(sizes) == 3
    assert max(sizes) <= 4280
    connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        pdu(12, ACK[:20], 0),
        pdu(12, ACK[:-30], 0),
        pdu(12, b"", 0),
        pdu(12, ACK.replace(NDR, bytes(20)), 0),
        pdu(12, struct.pack("<HHI", 10, 10, 1) + ACK[8:], 0),
        pdu(13, b"\4\0", 0),
        pdu(2, ACK, 0),
        pdu(12, ACK, 9),
        b"HTTP/1.1 400 Bad Request",
    ],
)
def test_wrong_answers_to_a_bind_are_refused(controller: Controller, answer: bytes) -> None:
    controller.answers[0] = lambda request: [answer]
    connection = connect(controller)
    with pytest.raises(RpcError):
        connection.bind(INTERFACE)
    connection.close()


@pytest.mark.parametrize(
    "answer",
    [response(b"x", 2), pdu(2, b"\0\0", 1), pdu(12, b"x" * 30, 1), pdu(3, bytes(8), 1)],
)
def test_wrong_answers_to_a_call_are_refused(controller: Controller, answer: bytes) -> None:
    controller.answers.append(lambda request: [answer])
    connection = connect(controller)
    connection.bind(INTERFACE)
    with pytest.raises(RpcError):
        connection.call(7, b"stub")
    connection.close()


def test_a_fault_has_its_status(controller: Controller) -> None:
    controller.answers.append(lambda request: [pdu(3, struct.pack("<IHHI", 0, 0, 0, 5), 1)])
    connection = connect(controller)
    connection.bind(INTERFACE)
    with pytest.raises(Fault) as fault:
        connection.call(7, b"stub")
    assert fault.value.status == 5
    connection.close()


def test_an_endless_answer_ends(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_client, "MAX_ANSWER", 10_000)
    controller.answers.append(lambda request: [response(bytes(4000), 1, 0)] * 4)
    connection = connect(controller)
    connection.bind(INTERFACE)
    with pytest.raises(RpcError, match="more than"):
        connection.call(7, b"stub")
    connection.close()


def test_a_silent_controller_takes_its_time_only(controller: Controller) -> None:
    controller.answers[0] = lambda request: []
    connection = connect(controller, 0.3)
    with pytest.raises(TimeoutError):
        connection.bind(INTERFACE)
    connection.close()


SECURE_ACK = pdu(12, ACK, 0, auth=struct.pack("<BBBBI", 0x44, 6, 0, 0, 1) + struct.pack("<III", 1, 0, 0))


@pytest.mark.parametrize(
    "answer",
    [
        response(b"in the clear", 1),
        pdu(2, bytes(24), 1, auth=struct.pack("<BBBBI", 0x44, 5, 0, 0, 1) + bytes(56)),
        pdu(2, bytes(24), 1, auth=struct.pack("<BBBBI", 10, 6, 0, 0, 1) + bytes(56)),
        pdu(2, bytes(24), 1, auth=struct.pack("<BBBBI", 0x44, 6, 0, 0, 1) + bytes(56)),
        pdu(2, bytes(24), 1, auth=struct.pack("<BBBBI", 0x44, 6, 0, 0, 1) + bytes(32)),
        pdu(2, bytes(24), 1, auth=struct.pack("<BBBBI", 0x44, 6, 200, 0, 1) + bytes(56)),
        pdu(2, bytes(8), 1, auth_size=60000),
    ],
)
def test_answers_without_the_seal_that_was_agreed_are_refused(controller: Controller, answer: bytes) -> None:
    controller.answers = [lambda request: [SECURE_ACK], lambda request: [answer]]
    connection = connect(controller)
    connection.bind(INTERFACE, Sealing(bytes(16), "CONTOSO", "FILES"))
    with pytest.raises(RpcError):
        connection.call(39, b"stub")
    connection.close()


def test_a_bind_that_asks_for_a_seal_is_not_answered_without() -> None:
    controller = Controller()
    connection = connect(controller)
    with pytest.raises(RpcError, match="without protection"):
        connection.bind(INTERFACE, Sealing(bytes(16), "CONTOSO", "FILES"))
    connection.close()
    controller.listener.close()

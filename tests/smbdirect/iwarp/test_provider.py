"""What is particular to the iWARP provider, over real sockets; the contract suite covers the rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from smbdirect.errors import ConnectionLost
from smbdirect.providers.base import (
    CloseCause,
    Completion,
    ConnectionRequest,
    Endpoint,
    Operation,
    RemoteSegment,
    Send,
    Status,
    Write,
)
from smbdirect.providers.iwarp import IwarpProvider, mpa
from smbdirect.providers.iwarp import provider as provider_module
from smbdirect.providers.iwarp.ddp import UntaggedHeader
from smbdirect.providers.iwarp.endpoint import is_loopback
from smbdirect.providers.iwarp.mpa import FRAME_HEADER, FrameFlag, Rtr
from smbdirect.providers.iwarp.rdmap import CONTROL, READ_REQUEST, Opcode, ReadRequest
from tests.lab.fpdu import Fpdu, encode_fpdu, iter_fpdus
from tests.lab.iwarp import RIGHTS, every_operation, finish
from tests.lab.providers import PATIENCE, Side, connect

PROVIDERS: dict[str, Callable[[], IwarpProvider]] = {
    "large": IwarpProvider,
    "large-crc": lambda: IwarpProvider(crc=True),
    "mss": lambda: IwarpProvider(large_fpdus=False),
    "revision-1": lambda: IwarpProvider(revision=1),
    "rtr-write": lambda: IwarpProvider(peer_to_peer=Rtr.WRITE),
    "rtr-read": lambda: IwarpProvider(peer_to_peer=Rtr.READ),
    "rtr-send": lambda: IwarpProvider(peer_to_peer=Rtr.SEND),
}


@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_session_with_every_operation(name: str, host: str) -> None:
    async def main() -> None:
        pair = await connect(PROVIDERS[name](), host)
        await every_operation(pair)
        counters = pair.server.endpoint.counters
        assert counters["bytes_sent_write"] == counters["bytes_received_read_response"] == 300_001
        assert pair.client.endpoint.counters["invalidations"] == 1
        if name == "large":
            assert counters["bytes_direct"] > 0
        await finish(pair)

    asyncio.run(main())


# -- the delivery of completions ------------------------------------------------------------------------------------


def test_work_posted_from_a_completion_completes_in_the_same_turn() -> None:
    """No call begins within another, and nothing is left to a later turn of the loop."""

    async def main() -> None:
        pair = await connect(IwarpProvider(), "127.0.0.1", receives=1)
        endpoint = pair.server.endpoint
        seen: list[tuple[object, str]] = []
        begun = 0

        def completed(completions: Sequence[Completion]) -> None:
            nonlocal begun
            begun += 1
            seen.extend((item.context, "nested" if begun > 1 else "alone") for item in completions)
            if len(seen) < 4:
                endpoint.post([Send([b"unseen"], signalled=False), Send([b"answer"], len(seen))])
            begun -= 1
            asyncio.get_running_loop().call_soon(seen.append, ("turn", "over"))

        endpoint.on_completions = completed
        pair.client.endpoint.post([Send([b"x"], signalled=False)])
        async with asyncio.timeout(PATIENCE):
            while ("turn", "over") not in seen:
                await asyncio.sleep(0)
        assert seen[:5] == [(0, "alone"), (1, "alone"), (2, "alone"), (3, "alone"), ("turn", "over")]
        pair.client.endpoint.abort()
        await pair.client.end()
        await pair.server.end()

    asyncio.run(main())


def test_post_never_delivers() -> None:
    async def main() -> None:
        pair = await connect(IwarpProvider(), "127.0.0.1")
        pair.client.endpoint.post([Send([b"x"], "context")])
        assert not pair.client.completions
        assert [item.context for item in await pair.client.sends(1)] == ["context"]
        await finish(pair)

    asyncio.run(main())


def test_a_completion_that_fails_keeps_none_of_the_next_back() -> None:
    async def main() -> None:
        pair = await connect(IwarpProvider(), "127.0.0.1")
        endpoint = pair.server.endpoint
        collect = endpoint.on_completions

        def fail(completions: Sequence[Completion]) -> None:
            endpoint.on_completions = collect
            endpoint.post([Send([b"answer"], "after")])
            raise ValueError("a defect of the owner")

        endpoint.on_completions = fail
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))
        pair.client.endpoint.post([Send([b"x"], signalled=False)])
        assert [item.context for item in await pair.server.sends(1)] == ["after"]
        assert [type(error) for error in errors] == [ValueError]
        await finish(pair)

    asyncio.run(main())


def test_completions_without_end_leave_turns_to_others() -> None:
    async def main() -> None:
        pair = await connect(IwarpProvider(), "127.0.0.1")
        endpoint = pair.server.endpoint
        turns = posted = 0

        def completed(completions: Sequence[Completion]) -> None:
            nonlocal posted
            if turns < 3:
                posted += 1
                endpoint.post([Send([b""], posted)])

        endpoint.on_completions = completed
        for _ in range(8):
            pair.client.endpoint.post([Send([b"x"], signalled=False)])
        async with asyncio.timeout(PATIENCE):
            while not posted:
                await asyncio.sleep(0)
            while turns < 3:
                turns += 1
                await asyncio.sleep(0)
        assert posted < 100
        for side in (pair.client, pair.server):
            side.endpoint.abort()
            side.endpoint.on_completions = side._completed
        await pair.client.end()
        await pair.server.end()

    asyncio.run(main())


# -- a peer written by hand ------------------------------------------------------------------------------------------


class RawPeer:
    """An initiator that sends exactly what a test tells it to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def rest(self) -> bytes:
        """Everything until the end of the connection."""
        data = bytearray()
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(ConnectionResetError):
                while part := await self.loop.sock_recv(self.sock, 65536):
                    data += part
        return bytes(data)

    async def frame(self) -> mpa.Frame:
        async with asyncio.timeout(PATIENCE):
            data = b""
            while len(data) < FRAME_HEADER.size:
                data += await self.loop.sock_recv(self.sock, FRAME_HEADER.size - len(data))
            while len(data) < FRAME_HEADER.size + int.from_bytes(data[18:20], "big"):
                data += await self.loop.sock_recv(self.sock, 1)
        return mpa.decode_frame(data, mpa.REPLY_KEY)

    async def set_up(self, **changes: Any) -> mpa.Frame:
        request = mpa.request_frame(b"", crc=False)
        await self.send(mpa.encode_frame(mpa.REQUEST_KEY, request._replace(**changes)))
        return await self.frame()

    async def fpdus_until_closed(self) -> list[Fpdu]:
        return list(iter_fpdus(await self.rest()))


Scenario = Callable[[RawPeer, list[Side]], Awaitable[None]]


def against_acceptor(scenario: Scenario, provider: IwarpProvider | None = None) -> None:
    """Run ``scenario`` with a raw peer connected to a listener whose accepted endpoints it sees."""

    async def main() -> None:
        sides: list[Side] = []
        tasks: list[asyncio.Task[None]] = []

        def on_request(request: ConnectionRequest) -> None:
            side = Side(request.prepare())
            side.post_receives(4)
            sides.append(side)
            tasks.append(asyncio.ensure_future(request.accept()))

        listener = await (provider or IwarpProvider()).listen("127.0.0.1", 0, on_request)
        with socket.socket() as sock:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, listener.address)
            await scenario(RawPeer(sock), sides)
        await asyncio.gather(*tasks)
        for side in sides:
            side.endpoint.abort()
            await side.end()
        await listener.close()

    asyncio.run(main())


def send_fpdu(payload: bytes = b"x", msn: int = 1) -> bytes:
    return encode_fpdu(UntaggedHeader(18 + len(payload), 0x41, CONTROL | Opcode.SEND, 0, 0, msn, 0), payload, False)


def read_fpdu(region: Any, msn: int) -> bytes:
    payload = READ_REQUEST.pack(ReadRequest(5, 0, region.length, region.token, region.address))
    return encode_fpdu(UntaggedHeader(46, 0x41, CONTROL | Opcode.READ_REQUEST, 0, 1, msn, 0), payload, False)


def test_acceptor_is_silent_until_the_first_fpdu() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        sides[0].endpoint.post([Send([b"early"])])
        await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            peer.sock.recv(1)
        await peer.send(send_fpdu())
        await sides[0].receives(1)
        sides[0].endpoint.disconnect()
        (fpdu,) = await peer.fpdus_until_closed()
        assert fpdu.payload == b"early"

    against_acceptor(scenario)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x44\xfeSMB", b"MPA ID Rep Frame" + bytes(4)])
def test_garbage_is_dropped_without_an_answer(garbage: bytes) -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.send(garbage)
        assert await peer.rest() == b""
        assert not sides

    against_acceptor(scenario)


def test_too_much_private_data_is_dropped_before_it_arrives() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.send(struct.pack(">16sBBH", mpa.REQUEST_KEY, 0, 1, 513))
        assert await peer.rest() == b""
        assert not sides

    against_acceptor(scenario)


@pytest.mark.parametrize("changes", [{"flags": FrameFlag.MARKERS | FrameFlag.ENHANCED}, {"revision": 3}])
def test_unacceptable_request_is_rejected(changes: dict[str, Any]) -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        reply = await peer.set_up(**changes)
        assert FrameFlag.REJECT in reply.flags
        assert FrameFlag.MARKERS not in reply.flags
        assert await peer.rest() == b""
        assert not sides

    against_acceptor(scenario)


def test_request_in_single_bytes() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        for byte in mpa.encode_frame(mpa.REQUEST_KEY, mpa.request_frame(b"private", crc=False)):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await peer.frame()).limits == mpa.ReadLimits(16, 16)
        assert sides[0].endpoint.private_data == b"private"

    against_acceptor(scenario)


def test_silent_peer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "MPA_TIMEOUT", 0.01)
    provider = IwarpProvider()

    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.send(b"MPA ID")
        assert await peer.rest() == b""
        assert not provider.handshakes

    against_acceptor(scenario, provider)


def test_unfinished_handshakes_are_bounded() -> None:
    provider = IwarpProvider()
    provider.unauthenticated.limit = 0

    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        assert await peer.rest() == b""

    against_acceptor(scenario, provider)


def test_terminate_tells_the_reason_and_the_header() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        bad = send_fpdu(msn=7)
        await peer.send(bad)
        (terminate,) = await peer.fpdus_until_closed()
        assert terminate.opcode == Opcode.TERMINATE
        assert isinstance(terminate.header, UntaggedHeader)
        assert (terminate.header.queue, terminate.header.msn) == (2, 1)
        assert terminate.payload == b"\x12\x03\xc0\0" + bad[:20]
        assert (await sides[0].end()).cause is CloseCause.PROTOCOL
        assert sides[0].endpoint.counters["terminates_sent"] == 1

    against_acceptor(scenario)


def test_terminate_of_the_peer_ends_the_connection() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        header = UntaggedHeader(22, 0x41, CONTROL | Opcode.TERMINATE, 0, 2, 1, 0)
        await peer.send(encode_fpdu(header, b"\x02\x01\0\0", False))
        assert await peer.rest() == b""
        reason = await sides[0].end()
        assert reason.cause is CloseCause.PEER
        assert "0x02 code 0x01" in reason.detail
        assert sides[0].endpoint.counters["terminates_received"] == 1

    against_acceptor(scenario)


def test_more_reads_than_agreed_are_terminated() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        region = sides[0].endpoint.register(memoryview(bytearray(1 << 20)), RIGHTS)
        await peer.send(b"".join(read_fpdu(region, msn) for msn in range(1, 18)))
        *responses, terminate = await peer.fpdus_until_closed()
        assert terminate.payload[:2] == b"\x12\x02"
        assert all(fpdu.opcode == Opcode.READ_RESPONSE for fpdu in responses)
        await sides[0].end()

    against_acceptor(scenario)


def test_reads_one_after_the_other_are_not_bounded() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        region = sides[0].endpoint.register(memoryview(bytearray(10)), RIGHTS)
        for msn in range(1, 50):
            await peer.send(read_fpdu(region, msn))
            data = b""
            while len(data) < 32:
                data += await peer.loop.sock_recv(peer.sock, 32 - len(data))
        assert not sides[0].closed

    against_acceptor(scenario)


def test_end_of_stream_within_an_fpdu() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        await peer.send(send_fpdu()[:-1])
        peer.sock.shutdown(socket.SHUT_WR)
        reason = await sides[0].end()
        assert reason.cause is CloseCause.PEER
        assert "middle" in reason.detail
        assert [item.status for item in sides[0].completions] == [Status.FLUSHED] * 4

    against_acceptor(scenario)


def test_crc_error_is_terminated() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up(flags=FrameFlag.ENHANCED | FrameFlag.CRC)
        await peer.send(send_fpdu())
        (terminate,) = await peer.fpdus_until_closed()
        assert terminate.payload == b"\x20\x02\0\0"
        assert (await sides[0].end()).cause is CloseCause.CRC

    against_acceptor(scenario)


def test_peer_that_does_not_read_delays_but_loses_nothing() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        await peer.send(send_fpdu())
        await sides[0].receives(1)
        data = os.urandom(1 << 20)
        sides[0].endpoint.post([Write([data], RemoteSegment(1, 0, len(data)), index) for index in range(16)])
        sides[0].endpoint.post([Send([b"end"], "end")])
        await asyncio.sleep(0)
        assert len(sides[0].of(Operation.WRITE)) < 16
        sides[0].endpoint.disconnect()
        fpdus = await peer.fpdus_until_closed()
        assert b"".join(fpdu.payload for fpdu in fpdus if fpdu.opcode == Opcode.RDMA_WRITE) == data * 16
        assert fpdus[-1].payload == b"end"
        completions = sides[0].of(Operation.WRITE, Operation.SEND)
        assert [item.context for item in completions] == [*range(16), "end"]
        assert all(item.status is Status.OK for item in completions)

    against_acceptor(scenario)


def test_disconnect_gives_up_on_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smbdirect.providers.iwarp.endpoint.DRAIN_TIMEOUT", 0.01)

    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        await peer.send(send_fpdu())
        await sides[0].receives(1)
        data = bytes(32 << 20)
        sides[0].endpoint.post([Write([data], RemoteSegment(1, 0, len(data)), "w")])
        sides[0].endpoint.disconnect()
        reason = await sides[0].end()
        assert reason.cause is CloseCause.LOCAL
        assert [item.status for item in sides[0].of(Operation.WRITE)] == [Status.FLUSHED]

    against_acceptor(scenario)


@pytest.mark.parametrize(("size", "control"), [(60_000, 0xC1), (200_000, 0x81)])
def test_invalidation_stops_a_write_under_way(size: int, control: int) -> None:
    """Neither may more of a large FPDU be received straight into memory that is no longer exposed. It is the last of
    its message, or others are expected."""

    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        memory = bytearray(size)
        region = sides[0].endpoint.register(memoryview(memory), RIGHTS)
        header = struct.pack(">HBBIQ", 14 + 60_000, control, CONTROL, region.token, region.address)
        await peer.send(send_fpdu() + header + b"a" * 1000)
        await sides[0].receives(1)
        async with asyncio.timeout(PATIENCE):
            while memory[0] == 0:
                await asyncio.sleep(0)
        region.deregister()
        before = bytes(memory)
        with contextlib.suppress(ConnectionError):
            await peer.send(b"b" * 59_000)
        assert (await sides[0].end()).cause is CloseCause.REMOTE_ACCESS
        await peer.rest()
        assert memory == before
        memory.clear()  # possible only if nobody holds a view any more

    against_acceptor(scenario)


def test_invalidation_stops_a_response_under_way() -> None:
    async def scenario(peer: RawPeer, sides: list[Side]) -> None:
        await peer.set_up()
        region = sides[0].endpoint.register(memoryview(bytearray(32 << 20)), RIGHTS)
        await peer.send(read_fpdu(region, 1) + send_fpdu())
        await sides[0].receives(1)
        region.invalidate()
        assert (await sides[0].end()).cause is CloseCause.REMOTE_ACCESS

    against_acceptor(scenario)


# -- the initiator against strange acceptors ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (b"", CloseCause.PEER),
        (b"HTTP/1.1 400 Bad Request", CloseCause.PROTOCOL),
        (struct.pack(">16sBBH", mpa.REPLY_KEY, 0x90, 2, 4) + bytes(4), CloseCause.PROTOCOL),
        (struct.pack(">16sBBH", mpa.REPLY_KEY, 0x30, 2, 4) + bytes(4), CloseCause.PROTOCOL),
        (struct.pack(">16sBBH", mpa.REPLY_KEY, 0, 1, 0), CloseCause.PROTOCOL),
        (struct.pack(">16sBBH", mpa.REPLY_KEY, 0x10, 2, 600), CloseCause.PROTOCOL),
    ],
)
def test_initiator_refuses_a_bad_reply(reply: bytes, cause: CloseCause) -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(20)
            writer.write(reply)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sides: list[Side] = []
        with pytest.raises(ConnectionLost) as caught:
            await IwarpProvider().connect("127.0.0.1", port, lambda endpoint: sides.append(Side(endpoint)))
        assert caught.value.reason.cause is cause  # type: ignore[attr-defined]
        assert (await sides[0].end()).cause is cause
        server.close()
        await server.wait_closed()

    asyncio.run(main())


@pytest.mark.parametrize("refusal", [b"", struct.pack(">16sBBH", mpa.REPLY_KEY, FrameFlag.REJECT, 1, 0)])
def test_initiator_falls_back_to_revision_1(refusal: bytes) -> None:
    """A responder that knows RFC 5044 only closes the connection, or rejects in its own revision."""

    async def main() -> None:
        revisions: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            header = FRAME_HEADER.unpack(await reader.readexactly(20))
            private_data = await reader.readexactly(header.private_data_length)
            revisions.append(header.revision)
            if header.revision == 2:
                writer.write(refusal)
            else:
                assert private_data == b"from client"
                writer.write(struct.pack(">16sBBH", mpa.REPLY_KEY, 0, 1, 5) + b"hello")
                (fpdu,) = iter_fpdus(await reader.readexactly(28))
                writer.write(send_fpdu(fpdu.payload))
                await reader.read(1)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        sides: list[Side] = []

        def prepare(endpoint: Endpoint) -> None:
            sides.append(Side(endpoint))
            sides[0].post_receives(1)

        endpoint = await IwarpProvider().connect("127.0.0.1", port, prepare, b"from client")
        assert (endpoint.private_data, endpoint.peer_address[1]) == (b"hello", port)
        assert endpoint.capabilities.max_outstanding_reads == 1
        endpoint.post([Send([b"echo"])])
        (received,) = await sides[0].receives(1)
        assert received.length == 4
        assert revisions == [2, 1]
        endpoint.disconnect()
        await sides[0].end()
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_initiator_that_is_rejected_in_revision_2_does_not_ask_again() -> None:
    async def main() -> None:
        asked: list[ConnectionRequest] = []

        def refuse(request: ConnectionRequest) -> None:
            asked.append(request)
            request.reject()

        listener = await IwarpProvider().listen("127.0.0.1", 0, refuse)
        with pytest.raises(ConnectionLost):
            await IwarpProvider().connect(*listener.address, lambda endpoint: None)
        assert len(asked) == 1
        await listener.close()

    asyncio.run(main())


@pytest.mark.parametrize("prepared", [False, True])
def test_request_that_nobody_answers_is_rejected(monkeypatch: pytest.MonkeyPatch, prepared: bool) -> None:
    monkeypatch.setattr(provider_module, "ANSWER_TIMEOUT", 0.02)

    async def main() -> None:
        requests: list[ConnectionRequest] = []
        sides: list[Side] = []

        def forget(request: ConnectionRequest) -> None:
            requests.append(request)
            if prepared:
                sides.append(Side(request.prepare()))

        listener = await IwarpProvider().listen("127.0.0.1", 0, forget)
        with pytest.raises(ConnectionLost) as caught:
            await IwarpProvider().connect(*listener.address, lambda endpoint: None)
        assert caught.value.reason.cause is not CloseCause.TIMEOUT  # type: ignore[attr-defined]
        with pytest.raises(ConnectionLost):
            await requests[0].accept()
        for side in sides:
            await side.end()
        await listener.close()

    asyncio.run(main())


def test_initiator_gives_up_after_its_timeout() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(ConnectionLost) as caught:
                await IwarpProvider().connect(*silent.getsockname(), lambda endpoint: None, timeout=0.02)
            assert caught.value.reason.cause is CloseCause.TIMEOUT  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    asyncio.run(main())


# -- life cycle ------------------------------------------------------------------------------------------------------


def test_adopted_socket() -> None:
    """A listener shared with direct TCP tells iWARP by the first byte and hands the socket over."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        provider = IwarpProvider()
        accepted: list[Side] = []
        tasks: list[asyncio.Task[None]] = []

        def on_request(request: ConnectionRequest) -> None:
            accepted.append(Side(request.prepare()))
            accepted[0].post_receives(1)
            tasks.append(asyncio.ensure_future(request.accept()))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            clients: list[Side] = []
            connecting = asyncio.ensure_future(
                provider.connect(*listener.getsockname(), lambda endpoint: clients.append(Side(endpoint)))
            )
            sock, _ = await loop.sock_accept(listener)
            while True:
                with contextlib.suppress(BlockingIOError):
                    assert sock.recv(1, socket.MSG_PEEK) == b"M"
                    break
                await asyncio.sleep(0)
            provider.adopt(sock, on_request)
            endpoint = await connecting
        endpoint.post([Send([b"adopted"])])
        await accepted[0].receives(1)
        endpoint.disconnect()
        await accepted[0].end()
        await clients[0].end()

    asyncio.run(main())


def test_rejection_reaches_the_initiator() -> None:
    async def main() -> None:
        provider = IwarpProvider()
        listener = await provider.listen("127.0.0.1", 0, lambda request: request.reject(b"no"))
        with pytest.raises(ConnectionLost, match="rejected"):
            await provider.connect(*listener.address, lambda endpoint: None)
        await listener.close()
        await listener.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected

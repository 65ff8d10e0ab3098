"""The project's client with a mutation step between building a request and signing or encrypting it."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from smb3server.client.protocol import Client
from smb3server.client.protocol.connection import NO_MESSAGE_ID
from smb3server.client.protocol.messages import Call, Protection, Reply
from smb3server.compression.transform import Packed
from smb3server.wire.header import HEADER, SIGNATURE_OFFSET, Command, Header, HeaderFlags
from smb3server.wire.status import NtStatus
from smbdirect.codec import Buffer
from tools.fuzz.mutation import mutate

KEPT = 40
"""Messages kept for a report."""
_HEADER_CHANCE, _FLAG_CHANCE = 0.03, 0.04
_RELATED = int(HeaderFlags.RELATED_OPERATIONS)
_FLAGS = (0x20000000, 0x20000000, 0x10000000, 0x4, 0x8, 0x2, 0x70)


class FuzzClient(Client):
    """A client that mutates part of its requests, once ``rate`` is above 0."""

    def __init__(self, transport: Any, credits_wanted: int = 512) -> None:
        super().__init__(transport, credits_wanted)
        self.chance = random.Random(0)
        self.rate = 0.0
        """The share of requests that is mutated."""
        self.sent: deque[bytes] = deque(maxlen=KEPT)
        """The last messages, as they were before signing and encryption."""
        self.count = 0
        self.statuses: Counter[int] = Counter()
        self.internal_errors: list[int] = []
        """Commands that were answered with INTERNAL_ERROR."""

    def _spoil(self, header: Header, body: Sequence[Buffer]) -> tuple[Header, list[Buffer]]:
        chance = self.chance
        if chance.random() < _FLAG_CHANCE:
            header = header._replace(flags=header.flags ^ chance.choice(_FLAGS))
        if chance.random() < _HEADER_CHANCE:
            header = chance.choice(
                (
                    header._replace(tree_id=chance.choice((0, 1, 0xFFFFFFFF, chance.getrandbits(32)))),
                    header._replace(session_id=header.session_id ^ 1 << chance.randrange(64)),
                    header._replace(credit_charge=chance.choice((0, 2, 16, 0xFFFF))),
                    header._replace(status=chance.choice((1, 2, 0xFFFF))),
                    header._replace(command=chance.randrange(20)),
                    header._replace(next_command=chance.choice((8, 64, 72, 0xFFFFFFF8))),
                    header._replace(structure_size=chance.choice((0, 63, 65))),
                    header._replace(message_id=header.message_id + chance.choice((1, 100, 1 << 63)) & (1 << 64) - 1),
                )
            )
            return header, list(body)
        return header, [mutate(chance, b"".join(body))]

    def _transmit(
        self,
        header: Header,
        body: Sequence[Buffer],
        session: Protection | None,
        signed: bool,
        encrypt: bool,
        on_encoded: Callable[[Sequence[Buffer]], None] | None = None,
        packed: Packed | None = None,
    ) -> None:
        self.count += 1
        if self.rate and self.chance.random() < self.rate:
            header, body = self._spoil(header, body)
            packed = None
        self.sent.append(b"".join((HEADER.pack(header), *body)))
        super()._transmit(header, body, session, signed, encrypt, on_encoded, packed)

    async def chain(self, parts: Sequence[tuple[int, bytes, bool]], session: Protection, tree_id: int) -> list[Call]:
        """Send requests (command, body, related) as one compound, and return the calls in progress.
        [MS-SMB2 3.2.4.1.4]
        """
        calls: list[Call] = []
        messages: list[bytearray] = []
        encrypt = session.encrypts(tree_id)
        signed = not encrypt and session.signer is not None and session.sign
        for index, (command, body, related) in enumerate(parts):
            call = self._enter(command, 1, session, tree_id, signed, encrypt, _RELATED if related else 0)
            calls.append(call)
            if self.chance.random() < self.rate:
                body = mutate(self.chance, body)
            message = bytearray(HEADER.pack(call.header) + body)
            if index < len(parts) - 1:
                message += bytes(-len(message) % 8)
                step = len(message) if self.chance.random() > self.rate / 20 else self.chance.choice((8, 0xFFFFFFF8))
                message[20:24] = step.to_bytes(4, "little")
            if signed and session.signer is not None:
                message[SIGNATURE_OFFSET : SIGNATURE_OFFSET + 16] = session.signer.expect(memoryview(message))
            messages.append(message)
        self.count += len(messages)
        self.sent.append(b"".join(messages))
        self._send(messages, session, encrypt)
        return calls

    def _take_one(self, reply: Reply) -> None:
        header = reply.header
        if header.message_id != NO_MESSAGE_ID:
            self.statuses[header.status] += 1
            # CHANGE_NOTIFY cannot wait in the middle of a compound: the server answers INTERNAL_ERROR there, as Windows
            # does.
            if header.status == NtStatus.INTERNAL_ERROR and header.command != Command.CHANGE_NOTIFY:
                self.internal_errors.append(header.command)
            if header.message_id not in self._calls:
                # The response to a mutated MessageId.
                self._grant(header.credits)
                reply.release()
                return
        super()._take_one(reply)

    def _verify(self, reply: Reply, started: Call) -> None:
        """Skip the checks of honest clients: the server rightly answers mutated requests unsigned."""
        if not self.rate:
            super()._verify(reply, started)

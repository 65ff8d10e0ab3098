"""Random bytes into the core: the only way out is ``ProtocolError``, and nothing is left behind."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from smbdirect.core.connection import Role
from smbdirect.core.messages import DATA_TRANSFER, DataTransfer, MessageReceived
from smbdirect.errors import ProtocolError
from tests.lab.cores import Subject, acceptor, client, initiator, server
from tests.lab.examples import examples

u16 = st.sampled_from([0, 1, 2, 255, 0xFFFF]) | st.integers(0, 0xFFFF)
u32 = st.sampled_from([0, 1, 8, 20, 24, 32, 1024, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF) | st.integers(0, 200)

headers = st.builds(DataTransfer, u16, u16, u16, u16, u32, u32, u32).map(DATA_TRANSFER.pack)
plausible = st.builds(
    lambda requested, granted, flags, remaining, length: DataTransfer(
        requested, granted, flags, 0, remaining, 24, length
    ),
    st.integers(1, 300),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 300) | st.just(0),
    st.integers(0, 100),
).map(DATA_TRANSFER.pack)
messages = st.binary(max_size=1500) | st.builds(
    lambda header, tail: header + tail, headers | plausible, st.binary(max_size=120)
)


def feed(subject: Subject, sequence: list[bytes]) -> None:
    core = subject.core
    for message in sequence:
        if not core.credits.receives_posted:
            break
        try:
            event = subject.receive(message)
        except ProtocolError:
            assert core.role is Role.CLOSED
            break
        if isinstance(event, MessageReceived) and event.buffer is not None:
            event.buffer.release()
        subject.pump()
        credits = core.credits
        assert 0 <= credits.receive_credits <= credits.receives_posted
        assert credits.send_credits >= 0
        assert credits.receives_posted <= core.settings.receive_credit_max + 8
        if core.role is Role.ESTABLISHED and core.next_deadline() is not None:
            core.send_message([b"answer"])
            subject.pump()
    core.close()
    assert subject.pool.lent == 0


@settings(max_examples=examples(150), deadline=None, database=None)
@given(st.lists(messages, min_size=1, max_size=12))
def test_established_cores(sequence: list[bytes]) -> None:
    feed(server(), sequence)
    feed(client(), sequence)


@settings(max_examples=examples(100), deadline=None, database=None)
@given(st.lists(st.binary(max_size=64), min_size=1, max_size=3))
def test_negotiating_cores(sequence: list[bytes]) -> None:
    feed(acceptor(), sequence)
    feed(initiator(), sequence)

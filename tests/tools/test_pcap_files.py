"""What captures come in: formats, compression, links, networks; and what is wrong with files."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from smb3server.lab.pcap.capture import CaptureError, Frame, Frames
from smb3server.lab.pcap.judge import Judge, judge_capture
from smb3server.lab.pcap.packets import PacketError, read_packet
from tests.lab.made_captures import LINKS, frames_of, native, over_ipv6, pcap, pcapng, relinked, write

TWO = [Frame(n, 1000 + n * 1e-6, 1, data, len(data)) for n, data in enumerate((b"first frame!", b"second"), 1)]
TCP, IWARP, ROCE = "linux612-tcp-smb3server", "linux612-siw-smb3server", "linux612-rxe-ksmbd"


def judged(frames: list[Frame]) -> Judge:
    """Frames, judged."""
    judge = Judge()
    for frame in frames:
        judge.add(frame)
    judge.finish()
    return judge


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("form", ["microseconds", "nanoseconds", "pcapng"])
def test_formats(order: str, form: str) -> None:
    data = pcapng(TWO, order=order) if form == "pcapng" else pcap(TWO, order=order, nanoseconds=form == "nanoseconds")
    read = list(Frames(io.BytesIO(data)))
    assert [(frame.number, frame.data) for frame in read] == [(frame.number, frame.data) for frame in TWO]
    assert read[1].time - read[0].time == pytest.approx(1e-6, rel=0.2)
    cut = Frames(io.BytesIO(data[:-3]))
    assert [frame.data for frame in cut] == [TWO[0].data]
    assert cut.ended_early


@pytest.mark.parametrize("form", [pcap, pcapng])
def test_a_file_that_ends_anywhere_is_read_up_to_there(form: object) -> None:
    whole = pcap(TWO) if form is pcap else pcapng(TWO)
    counts = []
    for size in range(4, len(whole) + 1):
        read = [frame.data for frame in Frames(io.BytesIO(whole[:size]))]
        assert read == [frame.data for frame in TWO][: len(read)]
        counts.append(len(read))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2}


def test_damaged_lengths_end_the_file_and_take_no_memory() -> None:
    data = bytearray(pcap(TWO))
    data[24 + 8 : 24 + 12] = b"\xff\xff\xff\xff"
    frames = Frames(io.BytesIO(bytes(data)))
    assert list(frames) == []
    assert "damaged" in frames.ended_early


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError):
        judge_capture(write(tmp_path / "x", b"not a capture"))


def test_compressed_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(TCP)
    packed = gzip.compress(pcap(frames), 1)
    assert judge_capture(write(tmp_path / "a.pcap.gz", packed)).connections[0].messages == 115
    data = pcap(frames)
    members = gzip.compress(data[:100_000], 1) + gzip.compress(data[100_000:], 1)
    assert judge_capture(write(tmp_path / "c.pcap.gz", members)).connections[0].messages == 115
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(packed)))
    assert judge_capture("-").connections[0].messages == 115
    cut = judge_capture(write(tmp_path / "b.pcap.gz", packed[: len(packed) // 2]))
    assert cut.clean
    assert any("ends within" in gap.reason for gap in cut.gaps)


@pytest.mark.parametrize("link", LINKS)
def test_links(link: str, tmp_path: Path) -> None:
    number, frames = relinked(frames_of(IWARP), link)
    found = judge_capture(write(tmp_path / "x.pcap", pcap(frames, number)))
    assert found.clean
    assert [(one.fabric, one.messages) for one in found.connections] == [("iwarp", 123)]


def test_ipv6() -> None:
    found = judged([over_ipv6(frame) for frame in frames_of(IWARP)])
    assert found.clean
    assert [(one.client[0], one.messages) for one in found.connections] == [("fd00::a00:20f", 123)]


@pytest.mark.parametrize("global_route", [False, True])
def test_native_infiniband(global_route: bool) -> None:
    found = judged([native(frame, global_route) for frame in frames_of(ROCE)])
    assert found.clean
    assert [(one.fabric, one.messages) for one in found.connections] == [("ib", 0), ("ib", 98)]
    assert found.checked["ib.icrc"] == 863
    assert found.connections[1].counters.rdma_write_bytes == 300_000


def test_changed_bytes_break_the_icrc_of_infiniband() -> None:
    frames = [native(frame, True) for frame in frames_of(ROCE)]
    raw = bytearray(frames[-1].data)
    raw[60] ^= 1
    found = judged([*frames[:-1], frames[-1]._replace(data=bytes(raw))])
    assert [breach.rule.id for breach in found.breaches] == ["ib.icrc"]


def test_unknown_links_are_named() -> None:
    found = judged([frame._replace(link_type=147) for frame in TWO])
    assert found.clean
    assert "link types 147" in found.gaps[0].reason


def test_fragments_and_damaged_headers_are_told() -> None:
    whole = frames_of(TCP)[5]
    fragment, short = bytearray(whole.data), bytearray(whole.data)
    fragment[20:22] = b"\x20\x00"
    short[14] = 0x41
    for data in (bytes(fragment), bytes(short), whole.data[:44]):
        with pytest.raises(PacketError):
            read_packet(whole._replace(data=data))


@pytest.mark.parametrize("name", [TCP, IWARP, ROCE])
def test_nothing_in_a_frame_ends_the_judge(name: str) -> None:
    """Every byte of the headers of some frames, changed."""
    frames = frames_of(name)[:40]
    for at in range(0, 140, 3):
        for value in (0x00, 0xFF):
            changed = []
            for frame in frames:
                raw = bytearray(frame.data)
                if at < len(raw):
                    raw[at] = value
                changed.append(frame._replace(data=bytes(raw)))
            judged(changed)

"""``smb3server pcap FILE...``: print the contents of captures, or judge them with ``--verify`` (exit 1 on
any problem).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from smb3server.tools.pcap.capture import CaptureError
from smb3server.tools.pcap.rdma import Kind, RdmaMessage
from smb3server.tools.pcap.replay import replay
from smb3server.tools.pcap.session import CaptureFile, Session, read_capture
from smb3server.tools.pcap.smb2 import Smb2Error, is_encrypted, split
from smb3server.tools.pcap.smbdirect import DataTransfer


def _describe_upper(data: bytes) -> str:
    if is_encrypted(data):
        return f"encrypted, {len(data)} bytes"
    try:
        return " + ".join(str(part) for part in split(data)) or f"SMB1 negotiate, {len(data)} bytes"
    except Smb2Error as error:
        return f"not SMB2: {error}"


def _describe_rdma(message: RdmaMessage, transfer: DataTransfer | None) -> str:
    if message.kind is not Kind.SEND:
        return f"{message.kind.value} {message.length} bytes at {message.address:#x} token {message.token:#x}"
    text = "Send" if message.invalidated is None else f"Send invalidating {message.invalidated:#x}"
    if transfer is None:
        return f"{text}: SMB Direct negotiate, {message.length} bytes"
    text += f": credits +{transfer.credits_granted} (wants {transfer.credits_requested}), {transfer.data_length} bytes"
    if transfer.remaining_data_length:
        text += f", {transfer.remaining_data_length} to come"
    return text


def dump_session(session: Session) -> None:
    """Print the messages of one connection."""
    print(f"{session.fabric} {session.client[0]}:{session.client[1]} -> {session.server[0]}:{session.server[1]}")
    if session.smbdirect is None:
        for message in session.upper:
            print(f"  {message.number:6} {message.direction.arrow} {_describe_upper(message.data)}")
        return
    reader = session.smbdirect
    for name, value in sorted(reader.wire.properties.items()):
        print(f"  {name}: {value!r}")
    print(f"  {reader.request}\n  {reader.response}")
    transfers = {id(message): transfer for message, transfer in reader.transfers}
    upper = iter(reader.upper)
    following = next(upper, None)
    for rdma in reader.wire.messages:
        transfer = transfers.get(id(rdma))
        print(f"  {rdma.number:6} {rdma.direction.arrow} {_describe_rdma(rdma, transfer)}")
        if transfer and transfer.data_length and not transfer.remaining_data_length and following:
            print(f"         {rdma.direction.arrow}   {_describe_upper(following.data)}")
            following = next(upper, None)
    print(f"  {reader.counters}")


def verify(capture: CaptureFile) -> bool:
    """Print a verdict per connection, every problem, and every disagreement of the project's codecs and
    state machines.
    """
    for problem in capture.all_problems:
        print(f"  {problem}")
    differences = [text for session in capture.sessions for text in replay(session)]
    for text in differences:
        print(f"  replay: {text}")
    for session in capture.sessions:
        line = f"  {session.fabric} {session.client[0]} -> {session.server[0]}:{session.server[1]}: "
        line += f"{len(session.upper)} messages, {len(session.problems)} problems"
        if session.smbdirect is not None:
            line += f", {session.smbdirect.counters}"
        print(line)
    passed = not capture.all_problems and not differences
    print(f"{capture.path}: {'ok' if passed else 'FAIL'} ({capture.frames} frames)")
    return passed


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = argparse.ArgumentParser(prog="smb3server pcap", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--verify", action="store_true", help="judge instead of print")
    options = parser.parse_args(arguments)
    passed = True
    for path in options.files:
        try:
            capture = read_capture(path)
        except (CaptureError, OSError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            passed = False
            continue
        if options.verify:
            passed &= verify(capture)
            continue
        for session in capture.sessions:
            dump_session(session)
        for number, name in capture.roce.management if capture.roce else ():
            print(f"  {number:6} CM {name}")
        for problem in capture.all_problems:
            print(f"  {problem}")
    return 0 if passed else 1

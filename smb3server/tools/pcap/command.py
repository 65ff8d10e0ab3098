"""``smb3server pcap FILE...``: judge captures of SMB Direct and SMB by the rules of their specifications."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from smb3server.tools.pcap.capture import CaptureError
from smb3server.tools.pcap.filters import Filter
from smb3server.tools.pcap.given_secrets import SecretError, Secrets
from smb3server.tools.pcap.json_report import JsonReport
from smb3server.tools.pcap.judge import Watcher, judge_capture
from smb3server.tools.pcap.replay import replay
from smb3server.tools.pcap.rules import RULES
from smb3server.tools.pcap.summary import Summary
from smb3server.tools.pcap.text_report import TextReport

EXIT_CLEAN, EXIT_BROKEN, EXIT_UNREADABLE = 0, 1, 2

_DESCRIPTION = """Judge captures of SMB Direct and SMB: iWARP, RoCEv2, InfiniBand and TCP, in pcap or pcapng, also
compressed by gzip. Both ends are followed through the state machines of MS-SMBD, MS-SMB2 and the fabric. A line per
command is printed, and a verdict per rule with frame numbers."""
_EPILOG = """Columns of a command: frames of request and final response, time (UTC), latency, number of the connection,
command, status, CreditCharge/CreditRequest/credits granted, marks (a: asynchronous, s: signed, e: encrypted), bytes and
how they went (with the number and the frames of RDMA operations), file or share.
Exit status: 0 no rule is broken, 1 rules are broken, 2 a file cannot be read. docs/captures.md has examples and the
fields of --json."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="smb3server pcap", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("files", nargs="*", metavar="FILE", help="captures; - is standard input")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--verdicts", action="store_true", help="no line per command")
    shown.add_argument("--messages", action="store_true", help="a line for each Send, RDMA Read and RDMA Write, too")
    shown.add_argument("--json", action="store_true", help="one JSON object per line")
    shown.add_argument("--rules", action="store_true", help="list all rules and exit")
    chosen = parser.add_argument_group("filters (repeated: any of them; different ones: all of them)")
    chosen.add_argument("--connection", type=int, action="append", default=[], metavar="N", help="by number")
    chosen.add_argument("--session", type=_number, action="append", default=[], metavar="ID", help="SessionId")
    chosen.add_argument("--command", type=str.upper, action="append", default=[], metavar="NAME", help="such as READ")
    chosen.add_argument("--file", default="", metavar="PATTERN", help="name of a file, with * and ?")
    chosen.add_argument(
        "--status", type=str.upper, action="append", default=[], metavar="NAME", help="such as ACCESS_DENIED, or 0x..."
    )
    chosen.add_argument("--errors", action="store_true", help="commands that failed or have no response")
    chosen.add_argument(
        "--rule", type=_rule, action="append", default=[], metavar="ID", help="a rule, or 'smbd.' for all that begin so"
    )
    chosen.add_argument("--frames", type=_frames, default=(0, 0), metavar="FIRST-LAST", help="frames of requests")
    secrets = parser.add_argument_group("keys, to verify signatures and to decrypt")
    secrets.add_argument(
        "--password", action="append", default=[], metavar="[USER:]PASSWORD", help="for logons by NTLM in the capture"
    )
    secrets.add_argument(
        "--session-key", action="append", default=[], metavar="[SESSIONID:]KEY", help="in hexadecimal digits"
    )
    secrets.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="lines 'password USER:PASSWORD' and 'key [SESSIONID:]KEY': other users see options, not files",
    )
    parser.add_argument(
        "--replay", action="store_true", help="also drive this server's own codecs and state machines by each capture"
    )
    return parser


def _number(text: str) -> int:
    return int(text, 0)


def _rule(text: str) -> str:
    if text not in RULES and not (text.endswith(".") and any(rule.startswith(text) for rule in RULES)):
        raise argparse.ArgumentTypeError(f"no rule {text}: --rules lists them")
    return text


def _frames(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    return int(first or 0), int(last or 0) if dash else int(first)


def _secrets(options: argparse.Namespace) -> Secrets:
    """Return the given keys. Raises ``SecretError`` and ``OSError``."""
    secrets = Secrets()
    for password in options.password:
        secrets.add_password(password)
    for key in options.session_key:
        secrets.add_key(key)
    if options.key_file is not None:
        secrets.add_file(options.key_file.read_text())
    return secrets


def _judge(name: str, options: argparse.Namespace, secrets: Secrets) -> bool:
    """Judge and print one capture. Return whether it is clean. Raises ``CaptureError`` and ``OSError``."""
    summary = Summary(
        Filter(
            frozenset(options.connection),
            frozenset(options.session),
            frozenset(options.command),
            options.file,
            frozenset(options.status),
            options.errors,
            frozenset(options.rule),
            *options.frames,
        )
    )
    kind = JsonReport if options.json else TextReport
    report = kind(summary, not options.verdicts, options.messages)
    watcher = Watcher(report.command, report.breach, report.gap, report.rdma if options.messages else None)
    judged = judge_capture(name, secrets, watcher, record=options.replay)
    differences = [text for one in judged.connections for text in replay(one)] if options.replay else []
    for text in differences:
        print(f"replay: {text}", file=sys.stderr)
    report.finish(name, judged)
    return not summary.broken and not differences


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.rules:
        for rule in RULES.values():
            print(f"{rule.id:<28} {rule.text} [{rule.section}]")
        return EXIT_CLEAN
    if not options.files:
        parser.error("no file is given")
    try:
        secrets = _secrets(options)
    except (SecretError, OSError) as error:
        parser.error(str(error))
    status = EXIT_CLEAN
    for name in options.files:
        try:
            clean = _judge(name, options, secrets)
        except BrokenPipeError:
            raise  # Nobody reads the output any more: that is no fault of the file.
        except (CaptureError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = EXIT_UNREADABLE
            continue
        if not clean:
            status = max(status, EXIT_BROKEN)
    return status

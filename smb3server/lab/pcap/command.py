"""``smb3server pcap FILE...``: judge captures of SMB Direct and SMB by the rules of their specifications."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smb3server.lab.pcap.capture import CaptureError
from smb3server.lab.pcap.filters import Filter
from smb3server.lab.pcap.given_secrets import SecretError, Secrets
from smb3server.lab.pcap.json_report import JsonReport
from smb3server.lab.pcap.judge import Watcher, judge_capture
from smb3server.lab.pcap.replay import replay
from smb3server.lab.pcap.rules import RULES
from smb3server.lab.pcap.summary import Summary
from smb3server.lab.pcap.text_report import TextReport

EXIT_CLEAN, EXIT_BROKEN, EXIT_UNREADABLE = 0, 1, 2


@dataclass(slots=True)
class Options:
    """What is shown of the captures, and how."""

    verdicts: bool = False
    messages: bool = False
    as_json: bool = False
    connection: tuple[int, ...] = ()
    session: tuple[int, ...] = ()
    commands: tuple[str, ...] = ()
    file: str = ""
    status: tuple[str, ...] = ()
    errors: bool = False
    rule: tuple[str, ...] = ()
    frames: tuple[int, int] = (0, 0)
    password: tuple[str, ...] = ()
    session_key: tuple[str, ...] = ()
    key_file: Path | None = None
    replay: bool = False


def _secrets(options: Options) -> Secrets:
    """Return the given keys. Raises ``SecretError``."""
    secrets = Secrets()
    for password in options.password:
        secrets.add_password(password)
    for key in options.session_key:
        secrets.add_key(key)
    if options.key_file is not None:
        try:
            text = options.key_file.read_text()
        except OSError as error:
            raise SecretError(str(error)) from error
        secrets.add_file(text)
    return secrets


def _judge(name: str, options: Options, secrets: Secrets) -> bool:
    """Judge and print one capture. Return whether it is clean. Raises ``CaptureError`` and ``OSError``."""
    summary = Summary(
        Filter(
            frozenset(options.connection),
            frozenset(options.session),
            frozenset(options.commands),
            options.file,
            frozenset(options.status),
            options.errors,
            frozenset(options.rule),
            *options.frames,
        )
    )
    kind = JsonReport if options.as_json else TextReport
    report = kind(summary, not options.verdicts, options.messages)
    watcher = Watcher(report.command, report.breach, report.gap, report.rdma if options.messages else None)
    judged = judge_capture(name, secrets, watcher, record=options.replay)
    differences = [text for one in judged.connections for text in replay(one)] if options.replay else []
    for text in differences:
        print(f"replay: {text}", file=sys.stderr)
    report.finish(name, judged)
    return not summary.broken and not differences


def list_rules() -> int:
    """Print all rules, and return the exit status."""
    for rule in RULES.values():
        print(f"{rule.id:<28} {rule.text} [{rule.section}]")
    return EXIT_CLEAN


def run(files: Sequence[str], options: Options) -> int:
    """Judge and print captures, and return the exit status. Raises ``SecretError`` for bad keys."""
    secrets = _secrets(options)
    status = EXIT_CLEAN
    for name in files:
        try:
            clean = _judge(name, options, secrets)
        except BrokenPipeError:
            raise  # Nobody reads the output any more: that is no fault of the file.
        except (CaptureError, OSError) as error:
            text = error.strerror if isinstance(error, OSError) and error.strerror else error
            print(f"smb3server pcap: {name}: {text}", file=sys.stderr)
            status = EXIT_UNREADABLE
            continue
        if not clean:
            status = max(status, EXIT_BROKEN)
    return status

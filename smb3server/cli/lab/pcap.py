"""``smb3server pcap FILE...``: judge captures of SMB Direct and SMB by the rules of their specifications."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class _Number(click.ParamType[int]):
    """A number, also with 0x."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else int(value, 0)
        except ValueError:
            self.fail(f"{value} is no number", param, ctx)


class _Frames(click.ParamType[tuple[int, int]]):
    """FIRST-LAST, FIRST- or one number."""

    name = "frames"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        first, dash, last = str(value).partition("-")
        try:
            return int(first or 0), int(last or 0) if dash else int(first)
        except ValueError:
            self.fail(f"{value}: write FIRST-LAST", param, ctx)


def _rules(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if given:
        from smb3server.lab.pcap.rules import RULES

        for text in given:
            if text not in RULES and not (text.endswith(".") and any(rule.startswith(text) for rule in RULES)):
                raise click.BadParameter(f"no rule {text}: --rules lists them", context, option)
    return given


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--verdicts", is_flag=True, help="No line per command.")
@click.option("--messages", is_flag=True, help="A line for each Send, RDMA Read and RDMA Write, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--rules", is_flag=True, help="List all rules and exit.")
@click.option("--connection", type=int, multiple=True, metavar="N", help="Filter: number of a connection.")
@click.option("--session", type=_Number(), multiple=True, metavar="ID", help="Filter: SessionId.")
@click.option("--command", "commands", multiple=True, metavar="NAME", help="Filter: such as READ.")
@click.option("--file", default="", metavar="PATTERN", help="Filter: name of a file, with * and ?.")
@click.option("--status", multiple=True, metavar="NAME", help="Filter: such as ACCESS_DENIED, or 0x....")
@click.option("--errors", is_flag=True, help="Filter: commands that failed or have no response.")
@click.option(
    "--rule", multiple=True, callback=_rules, metavar="ID", help="Filter: a rule, or 'smbd.' for all that begin so."
)
@click.option("--frames", type=_Frames(), default="0-0", metavar="FIRST-LAST", help="Filter: frames of requests.")
@click.option("--password", multiple=True, metavar="[USER:]PASSWORD", help="Key: for logons by NTLM in the capture.")
@click.option("--session-key", multiple=True, metavar="[SESSIONID:]KEY", help="Key: in hexadecimal digits.")
@click.option(
    "--key-file",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Keys: lines 'password USER:PASSWORD' and 'key [SESSIONID:]KEY'. Other users see options, not files.",
)
@click.option("--replay", is_flag=True, help="Also drive this server's own codecs and state machines by each capture.")
def command(files: tuple[str, ...], rules: bool, **options: Any) -> int:
    """Judge captures of SMB Direct and SMB: iWARP, RoCEv2, InfiniBand and TCP.

    A FILE is pcap or pcapng, also compressed by gzip; - is standard input. Both ends are followed through the state
    machines of MS-SMBD, MS-SMB2 and the fabric. A line per command is printed, and a verdict per rule with frame
    numbers. Keys serve to verify signatures and to decrypt. A repeated filter means any of its values; different
    filters all have to match.

    \b
    Examples:
      smb3server pcap capture.pcapng
      tcpdump -w - port 445 or port 5445 | smb3server pcap --verdicts -
      smb3server pcap --errors --command CREATE --file '*.docx' capture.pcapng
      smb3server pcap --key-file keys --json capture.pcapng

    Columns of a command: frames of request and final response, time (UTC), latency, number of the connection, command,
    status, CreditCharge/CreditRequest/credits granted, marks (a: asynchronous, s: signed, e: encrypted), bytes and how
    they went (with the number and the frames of RDMA operations), file or share.

    Exit status: 0 no rule is broken, 1 rules are broken, 2 a file cannot be read, or wrong usage. docs/captures.md has
    more examples and the fields of --json.
    """
    from smb3server.lab.pcap.command import Options, list_rules, run
    from smb3server.lab.pcap.given_secrets import SecretError

    if rules:
        return list_rules()
    if not files:
        raise click.UsageError("no file is given")
    options["commands"] = tuple(name.upper() for name in options["commands"])
    options["status"] = tuple(name.upper() for name in options["status"])
    try:
        return run(files, Options(**options))
    except SecretError as error:
        raise click.UsageError(str(error)) from error

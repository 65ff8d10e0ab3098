"""The tree of commands: the table of all commands, and how a command line chooses one of them.

A command is a module of ``smb3server.cli`` with a click command or group named ``command``. It is imported when it is
needed, and imports at its top nothing but what declares its options.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from smb3server.cli.exits import STATUSES

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

HEADINGS = SERVING, SHOWING, CHANGING, USING, TESTING, OTHER = (
    "The server",
    "What it does",
    "Change it",
    "Use a share",
    "Protocol and test tools",
    "This command",
)
"""Headings of the commands in the help, in their order."""


class Entry(NamedTuple):
    """One command."""

    module: str
    heading: str
    help: str
    hidden: bool = False


COMMANDS = {
    "serve": Entry("smb3server.cli.server.serve", SERVING, "share directories; the same as no command"),
    "check": Entry("smb3server.cli.server.check", SERVING, "test a configuration, show the values in effect"),
    "config": Entry("smb3server.cli.server.config", SERVING, "example, schema, values in effect, import from Samba"),
    "reload": Entry("smb3server.cli.server.reload", SERVING, "read the configuration again, without cutting clients"),
    "stop": Entry("smb3server.cli.server.stop", SERVING, "end a running server"),
    "hash": Entry("smb3server.cli.admin.password_hash", SERVING, "make a line for users_file"),
    "status": Entry("smb3server.cli.status.command", SHOWING, "sessions, channels and opens, and whether RDMA is used"),
    "metrics": Entry("smb3server.cli.server.metrics", SHOWING, "print metrics for Prometheus"),
    "trace": Entry("smb3server.cli.server.trace", SHOWING, "write a client's messages to a file for Wireshark"),
    "log-level": Entry("smb3server.cli.server.log_level", SHOWING, "show or change the levels of the log"),
    "doctor": Entry("smb3server.cli.doctor", SHOWING, "what this machine can serve, or how a share is reached"),
    "user": Entry("smb3server.cli.admin.user", CHANGING, "add, change, list and remove users, import them from Samba"),
    "share": Entry("smb3server.cli.admin.share", CHANGING, "list, add, change and remove shares at run time"),
    "dfs": Entry("smb3server.cli.admin.dfs", CHANGING, "list namespaces, and add, change and remove their links"),
    "snapshot": Entry("smb3server.cli.admin.snapshot", CHANGING, "make, list and remove snapshots of a share"),
    "session": Entry("smb3server.cli.admin.session", CHANGING, "list sessions, end some"),
    "file": Entry("smb3server.cli.admin.file", CHANGING, "list open files, close some"),
    "domain": Entry("smb3server.cli.domain.command", CHANGING, "join a domain, leave it, show the membership"),
    "join": Entry("smb3server.cli.domain.join", CHANGING, "the short name of domain join", hidden=True),
    "cluster": Entry("smb3server.cli.cluster.command", CHANGING, "show nodes and services of a cluster, move services"),
    "witness": Entry("smb3server.cli.cluster.witness", CHANGING, "ask a Witness service, notify its clients"),
    "client": Entry("smb3server.cli.client.command", USING, "copy and list files of any share, also by RDMA"),
    "selfcheck": Entry("smb3server.cli.lab.selfcheck", TESTING, "check that RDMA NICs carry data unharmed"),
    "verbs-check": Entry("smb3server.cli.lab.selfcheck", TESTING, "the old name of selfcheck", hidden=True),
    "conformance": Entry("smb3server.cli.lab.conformance", TESTING, "test an SMB Direct server rule by rule"),
    "pcap": Entry("smb3server.cli.lab.pcap", TESTING, "judge captures of SMB Direct and SMB"),
    "proxy": Entry("smb3server.cli.lab.proxy", TESTING, "carry a client's TCP over SMB Direct"),
    "bench": Entry("smb3server.cli.lab.bench", TESTING, "measure this server against Samba"),
    "completion": Entry("smb3server.cli.itself.completion", OTHER, "print the completion script of a shell"),
    "help": Entry("smb3server.cli.itself.help", OTHER, "show the help of a command"),
}
IMPLIED = ""
"""Name of the command if the command line has none: ``serve``."""

_HELP = f"""Share directories over SMB 2.0.2 to 3.1.1, on TCP and on SMB Direct (RDMA in user space).

Without a command the options are those of "serve": "smb3server --share data=/srv/data --user alice --rdma".

\b
Examples:
  smb3server --share data=/srv/data --user alice --rdma   (asks for a password)
  smb3server --config /etc/smb3server/smb3server.toml
  smb3server status --watch
  smb3server doctor //files.example.com/data --user alice
  smb3server COMMAND --help

{STATUSES}
"""


def find_command(arguments: Sequence[str]) -> int | None:
    """Return the index of the command, or None if there is none: then ``arguments`` are those of ``serve``.

    Options may stand before the command: "smb3server --config F status".
    """
    if arguments[:1] and arguments[0] in COMMANDS:
        return 0
    # Most command lines begin with the command, and need no option of ``serve``.
    from smb3server.config.command_line.options import options_with_value

    with_value, optional = options_with_value()
    unknown = False
    index = 0
    while index < len(arguments):
        word = arguments[index]
        following = arguments[index + 1] if index + 1 < len(arguments) else "-"
        if word == "--":
            return None
        if not word.startswith("-"):
            # This may be the value of an option that only the command knows.
            return index if word in COMMANDS or not unknown else None
        has_value = word in with_value or (
            word in optional and not following.startswith("-") and following not in COMMANDS
        )
        unknown = unknown or not (has_value or word in optional or word == "--guest" or "=" in word)
        index += 2 if has_value else 1
    return None


class _NotNamedYet(click.Command):
    """What shells complete as long as the line names no command: commands, and the options of ``serve``."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        words = {name: entry.help for name, entry in COMMANDS.items() if not entry.hidden}
        if incomplete.startswith("-"):
            words["--version"] = "Print the version."
        found = [CompletionItem(word, help=text) for word, text in words.items() if word.startswith(incomplete)]
        return found + super().shell_complete(ctx, incomplete)


class Tree(click.Group):
    """The command ``smb3server``: it imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, entry in COMMANDS.items() if not entry.hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name or "serve")
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command first."""
        if not args or args[0] not in ("--help", "-h", "--version"):
            index = find_command(args)
            args = [IMPLIED, *args] if index is None else [args[index], *args[:index], *args[index + 1 :]]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name and name not in COMMANDS and not ctx.resilient_parsing:
            import difflib

            close = difflib.get_close_matches(name, self.list_commands(ctx), 3, 0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else "smb3server --help lists the commands"
            raise click.UsageError(f"there is no command {name}: {hint}", ctx)
        command = self.get_command(ctx, name)
        if name == IMPLIED and ctx.resilient_parsing and command is not None:
            command = _NotNamedYet(name, params=command.params)
        return name, command, args[1:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table, by headings. No command is imported."""
        width = max(len(name) for name in self.list_commands(ctx))
        for heading in HEADINGS:
            rows = [
                (name.ljust(width), entry.help)
                for name, entry in COMMANDS.items()
                if entry.heading == heading and not entry.hidden
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _print_version(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not context.resilient_parsing:
        from smb3server.cli.itself.version import version_line

        print(version_line())
        context.exit()


TREE = Tree(
    "smb3server",
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Print the version, and which modules in C are used.",
        )
    ],
    subcommand_metavar="[COMMAND] [OPTIONS]",
    options_metavar="",
)
"""The root."""

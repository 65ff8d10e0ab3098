"""``smb3server dfs``: the namespaces of a running server, and adding, changing and removing links at run time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from smb3server.cli.admin.share import read_settings
from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import server_choice

_SET = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="comment, ttl, failback or targets, as in the configuration file; a list: targets=//a/x,//b/x.",
)


@click.group()
def command() -> None:
    """List namespaces, and add, change and remove their links in a running server.

    Links that are added here stay after a restart: the server keeps them in shares.toml in its state directory. The
    namespaces, and the links of the configuration file, belong to that file: change them there, then "smb3server
    reload".

    \b
    Examples:
      smb3server dfs list
      smb3server dfs add files/projects //files1/projects "//files2/projects; priority=last"
      smb3server dfs set files/projects --set ttl=60 --set targets=//files3/projects
      smb3server dfs remove files/projects

    Exit status: 0 done, 1 the server refuses, 2 wrong usage, 3 no server found.
    """


@command.command("list")
@server_choice
@click.option("--json", "as_json", is_flag=True, help="JSON: a list of objects.")
def list_links(state: Path | None, socket: Path | None, config: Path | None, as_json: bool) -> int:
    """List the namespaces and their links, and where each link leads and comes from."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.cli.status.short_tables import print_table

    namespaces = ask_server(state, socket, config, "dfs-list")["namespaces"]
    if as_json:
        print(json.dumps(namespaces, indent=2))
        return EXIT_DONE
    rows = []
    for entry in namespaces:
        rows.append((entry["name"], "configuration", str(entry["ttl"]), ""))
        for link in entry["links"]:
            name = f"{entry['name']}/{link['path']}"
            rows += [
                (
                    name if not number else "",
                    link["origin"] if not number else "",
                    str(link["ttl"]) if not number else "",
                    target,
                )
                for number, target in enumerate(link["targets"])
            ]
    print_table(("LINK", "FROM", "TTL", "TARGETS"), rows)
    return EXIT_DONE


def _split(name: str) -> dict[str, str]:
    """Return namespace and path of ``NAMESPACE/PATH``."""
    namespace, _, path = name.replace("\\", "/").strip("/").partition("/")
    if not path:
        raise click.UsageError(f"{name}: write NAMESPACE/LINK, as in files/projects")
    return {"namespace": namespace, "path": path}


@command.command()
@click.argument("link", metavar="NAMESPACE/LINK")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@_SET
@server_choice
def add(
    link: str,
    targets: Sequence[str],
    settings: Sequence[str],
    state: Path | None,
    socket: Path | None,
    config: Path | None,
) -> int:
    """Add a link, at once. TARGET is //SERVER/SHARE, or SHARE for a share of this server."""
    from smb3server.cli.ask_server import ask_server

    options: dict[str, Any] = {**_settings(settings), "targets": list(targets)}
    answer = ask_server(state, socket, config, "dfs-add", **_split(link), options=options)
    print(f"link {link}: {', '.join(targets)}{'' if answer['lasting'] else ' until the server restarts'}")
    if not answer["lasting"]:
        print("note: the server has no state directory to keep it in: give it one with --state or [server] state")
    return EXIT_DONE


@command.command("set")
@click.argument("link", metavar="NAMESPACE/LINK")
@_SET
@click.option("--unset", "defaults", multiple=True, metavar="KEY", help="Give a setting its default again.")
@server_choice
def set_settings(
    link: str,
    settings: Sequence[str],
    defaults: Sequence[str],
    state: Path | None,
    socket: Path | None,
    config: Path | None,
) -> int:
    """Change a link that was added at run time. Clients learn it when what they remember is too old."""
    from smb3server.cli.ask_server import ask_server

    if not settings and not defaults:
        raise click.UsageError("nothing to change: give --set KEY=VALUE or --unset KEY")
    options: dict[str, Any] = {**_settings(settings), **dict.fromkeys(defaults)}
    ask_server(state, socket, config, "dfs-set", **_split(link), options=options)
    print(f"link {link}: changed")
    return EXIT_DONE


@command.command()
@click.argument("link", metavar="NAMESPACE/LINK")
@server_choice
def remove(link: str, state: Path | None, socket: Path | None, config: Path | None) -> int:
    """Remove a link that was added at run time. What it leads to stays."""
    from smb3server.cli.ask_server import ask_server

    ask_server(state, socket, config, "dfs-remove", **_split(link))
    print(f"link {link}: removed; the files of its targets stay")
    return EXIT_DONE


def _settings(settings: Sequence[str]) -> dict[str, Any]:
    from smb3server.config.schema import Link

    return read_settings(settings, Link)

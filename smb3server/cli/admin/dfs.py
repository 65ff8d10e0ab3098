"""``smb3server dfs``: the namespaces of a running server, and adding, changing and removing links at run time."""

from __future__ import annotations

from collections.abc import Sequence

import click

from smb3server.cli.admin.share import NOT_KEPT, read_changes, read_settings, unset_option
from smb3server.cli.exits import EXIT_DONE
from smb3server.cli.running_server import ServerChoice, server_choice

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
def list_links(server: ServerChoice, as_json: bool) -> int:
    """List the namespaces and their links, and where each link leads and comes from."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.cli.status.short_tables import print_list

    namespaces = ask_server(server, "dfs-list")["namespaces"]
    rows = []
    for entry in namespaces:
        rows.append((entry["name"], "configuration", str(entry["ttl"]), ""))
        for link in entry["links"]:
            first = (f"{entry['name']}/{link['path']}", link["origin"], str(link["ttl"]))
            rows += [
                (*(first if not number else ("", "", "")), target) for number, target in enumerate(link["targets"])
            ]
    print_list(as_json, namespaces, ("LINK", "FROM", "TTL", "TARGETS"), rows)
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
def add(link: str, targets: Sequence[str], settings: Sequence[str], server: ServerChoice) -> int:
    """Add a link, at once. TARGET is //SERVER/SHARE, or SHARE for a share of this server."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.config.schema import Link

    options = {**read_settings(settings, Link), "targets": list(targets)}
    answer = ask_server(server, "dfs-add", **_split(link), options=options)
    print(f"link {link}: {', '.join(targets)}{'' if answer['lasting'] else ' until the server restarts'}")
    if not answer["lasting"]:
        print(NOT_KEPT)
    return EXIT_DONE


@command.command("set")
@click.argument("link", metavar="NAMESPACE/LINK")
@_SET
@unset_option
@server_choice
def set_settings(link: str, settings: Sequence[str], defaults: Sequence[str], server: ServerChoice) -> int:
    """Change a link that was added at run time. Clients learn it when what they remember is too old."""
    from smb3server.cli.ask_server import ask_server
    from smb3server.config.schema import Link

    ask_server(server, "dfs-set", **_split(link), options=read_changes(settings, defaults, Link))
    print(f"link {link}: changed")
    return EXIT_DONE


@command.command()
@click.argument("link", metavar="NAMESPACE/LINK")
@server_choice
def remove(link: str, server: ServerChoice) -> int:
    """Remove a link that was added at run time. What it leads to stays."""
    from smb3server.cli.ask_server import ask_server

    ask_server(server, "dfs-remove", **_split(link))
    print(f"link {link}: removed; the files of its targets stay")
    return EXIT_DONE

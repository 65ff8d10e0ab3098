"""``smb3server user``: the accounts of the users file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smb3server.cli import known_names
from smb3server.cli.admin.password_input import PasswordSource, new_password, no_password_argument, password_options
from smb3server.cli.admin.users_store import Store, get, store_options, tell_servers
from smb3server.cli.exits import EXIT_DONE, EXIT_FAILED, EXIT_USAGE, CommandError
from smb3server.cli.together import together

if TYPE_CHECKING:
    from smb3server.auth.users_file import StoredUser, Users


@click.group()
def command() -> None:
    """Add, change, list and remove users, and import them from Samba.

    Users are kept as lines of a users file, with NT hashes and never passwords. A running server that uses the file has
    a change at once. Users of the configuration file ([[user]]) are changed there.

    \b
    Examples:
      smb3server user add alice --unix-user alice
      smb3server user passwd alice
      smb3server user list
      pdbedit -Lw | smb3server user import -

    Without --file, --config or --state it is the file of the running server, or of /etc/smb3server/smb3server.toml, or
    /etc/smb3server/users (root), or ~/.config/smb3server/users.

    Exit status: 0 done, 1 failed, 2 wrong usage.
    """


field_options = together(
    click.option("--unix-user", metavar="NAME", help="User of this machine that it acts as."),
    click.option("--full-name", metavar="TEXT", help="Shown in lists of users."),
    click.option("--comment", metavar="TEXT", help="Shown in lists of users."),
    click.option("--principal", metavar="NAME@REALM", help="Kerberos principal that has the account."),
    click.option("--expires", metavar="DATE", help='Refuse logons from then on; "never".'),
    click.option("--must-change/--no-must-change", default=None, help="Refuse logons until the password changes."),
)
"""The options for an account's fields."""


def _changed(user: StoredUser, fields: dict[str, Any]) -> StoredUser:
    """Return the account with the fields that the options give. Raises ``CommandError``."""
    import pwd

    from smb3server.auth.users import parse_principal
    from smb3server.auth.users_file import parse_time

    given = {key: value for key, value in fields.items() if value is not None}
    try:
        if given.get("unix_user"):
            pwd.getpwnam(given["unix_user"])
        if given.get("principal"):
            parse_principal(given["principal"])
        if "expires" in given:
            given["expires"] = 0 if given["expires"] in ("", "never") else parse_time(given["expires"])
    except KeyError:
        raise CommandError(f"this machine has no user {given['unix_user']}; useradd makes one", EXIT_USAGE) from None
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    return replace(user, **given)


def _hash(name: str, source: PasswordSource, old: bytes | None, store: Store) -> bytes:
    """Return the hash of a new password from where the options say, and print one made by chance."""
    from smb3server.auth.password_rules import MIN_LENGTH, PasswordRefused, check_new_password

    server = store.document().get("server", {})
    least = server.get("min_password_length", MIN_LENGTH) if isinstance(server, dict) else MIN_LENGTH
    password = new_password(name, source)
    try:
        made = check_new_password(password, name, None if source.force else old, 0 if source.force else least)
    except PasswordRefused as error:
        hint = "" if source.force or not password else "; --force takes it all the same"
        raise CommandError(f"{error}{hint}", EXIT_USAGE) from error
    if source.random:
        click.echo(f"password of {name}: {password}")
    return made


@command.command()
@click.argument("name")
@no_password_argument
@password_options
@field_options
@store_options
def add(
    name: str, store: Store, password_file: Path | None, password_stdin: bool, random: bool, force: bool, **fields: Any
) -> None:
    """Add the user NAME. The password is asked for.

    \b
    Examples:
      smb3server user add alice --unix-user alice --full-name "Alice Liddell"
      smb3server user add guest-of-bob --random --expires 2026-12-31
      pass show smb/alice | smb3server user add alice --password-stdin
    """
    from smb3server.auth.users_file import StoredUser, check_name

    try:
        check_name(name)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    _check_unused(store, store.read(), name)
    made = _changed(StoredUser(name, b""), fields)
    digest = _hash(name, PasswordSource(password_file, password_stdin, random, force), None, store)
    made = made.with_password(digest, must_change=made.must_change)

    def change(users: Users) -> None:
        _check_unused(store, users, name)
        users.put(made)

    store.change(change)
    click.echo(f"added {name} to {store.path}")
    tell_servers(store.path)


def _check_unused(store: Store, users: Users, name: str) -> None:
    """Raise ``CommandError`` if there is an account or a group of this name."""
    if users.find(name) is not None:
        raise CommandError(f"{store.path} has a user {name} already; `smb3server user passwd {name}` sets the password")
    if store.groups().find(name) is not None:
        raise CommandError(f"there is a group {name} in {store.config}; choose another name")
    sections = store.document().get("user", [])
    for section in sections if isinstance(sections, list) else []:
        if isinstance(section, dict) and str(section.get("name", "")).casefold() == name.casefold():
            raise CommandError(f"{store.config} has a [[user]] {name}; change it there, or remove it first")


@command.command()
@click.argument("name")
@no_password_argument
@password_options
@click.option("--must-change", is_flag=True, help="The user must change it before the next logon.")
@store_options
def passwd(
    name: str,
    store: Store,
    password_file: Path | None,
    password_stdin: bool,
    random: bool,
    force: bool,
    must_change: bool,
) -> None:
    """Set the password of the user NAME. Sessions that are logged on stay.

    \b
    Examples:
      smb3server user passwd alice
      smb3server user passwd alice --random
    """
    found = get(store.read(), name, store.path)
    digest = _hash(found.name, PasswordSource(password_file, password_stdin, random, force), found.nt_hash, store)
    store.change(lambda users: users.put(get(users, name, store.path).with_password(digest, must_change=must_change)))
    click.echo(f"{found.name} has a new password")
    tell_servers(store.path)


@command.command("set")
@click.argument("name")
@field_options
@store_options
def set_fields(name: str, store: Store, **fields: Any) -> None:
    """Change what is noted of the user NAME. An empty text removes it.

    \b
    Examples:
      smb3server user set alice --unix-user alice
      smb3server user set alice --expires 2026-12-31
      smb3server user set alice --expires never --comment ""
    """
    if all(value is None for value in fields.values()):
        raise CommandError("nothing to change; give at least one option", EXIT_USAGE)
    store.change(lambda users: users.put(_changed(get(users, name, store.path), fields)))
    click.echo(f"changed {name}")
    tell_servers(store.path)


def _for_each(names: tuple[str, ...], store: Store, change: Callable[[Users, StoredUser], None], done: str) -> None:
    """Change accounts, all or none."""

    def change_all(users: Users) -> None:
        for user in [get(users, name, store.path) for name in names]:
            change(users, user)

    store.change(change_all)
    click.echo(f"{done} {', '.join(names)}")
    tell_servers(store.path)


_names = click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=known_names.users)


@command.command()
@_names
@store_options
def remove(names: tuple[str, ...], store: Store) -> None:
    """Remove users. Their sessions on a running server end; their files stay.

    \b
    Examples:
      smb3server user remove bob
    """
    _for_each(names, store, _remove, "removed")


def _remove(users: Users, user: StoredUser) -> None:
    users.remove(user.name)


@command.command()
@_names
@store_options
def disable(names: tuple[str, ...], store: Store) -> None:
    """Refuse logons of users, and end their sessions on a running server.

    \b
    Examples:
      smb3server user disable bob
    """
    _for_each(names, store, lambda users, user: users.put(replace(user, disabled=True)), "disabled")


@command.command()
@_names
@store_options
def enable(names: tuple[str, ...], store: Store) -> None:
    """Let users log on again.

    \b
    Examples:
      smb3server user enable bob
    """
    _for_each(names, store, lambda users, user: users.put(replace(user, disabled=False)), "enabled")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="A list of objects, for programs.")
@store_options
def list_users(store: Store, as_json: bool) -> None:
    """Show the users of the file, without passwords and hashes.

    \b
    Examples:
      smb3server user list
      smb3server user list --json | jq -r '.[] | select(.disabled) | .name'
    """
    from smb3server.cli.admin.users_view import as_objects, as_table

    found = as_objects(store.read(), store.groups())
    if as_json:
        import json

        click.echo(json.dumps(found, indent=2))
        return
    click.echo(as_table(found) if found else f"{store.path} has no users; `smb3server user add NAME` adds one")


@command.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="An object with a list of members for each group.")
@store_options
def groups(name: str | None, store: Store, as_json: bool) -> None:
    """Show the groups of the configuration file and their members, or those that the user NAME is in.

    Groups are the section [groups] of the configuration file; lists of users name them with an @.

    \b
    Examples:
      smb3server user groups
      smb3server user groups alice
    """
    import json

    from smb3server.access.identity import Identity

    if store.config is None:
        raise CommandError("groups are kept in the configuration file; name it with --config FILE.toml", EXIT_USAGE)
    found = store.groups()
    chosen = found.of(Identity(name)) if name is not None else list(found)
    if as_json:
        click.echo(json.dumps({group: sorted(found.members(group)) for group in chosen}, indent=2))
        return
    for group in chosen:
        click.echo(f"{group}: {', '.join(sorted(found.members(group))) or 'nobody'}")
    if not chosen:
        click.echo(f"{name} is in no group" if name is not None else f"{store.config} has no [groups]")


@command.command("import")
@click.argument("source", metavar="FILE", type=click.File())
@click.option("--replace", "replaces", is_flag=True, help="Replace users that there are already.")
@click.option("--unix-users/--no-unix-users", default=None,
              help="Act as the users of this machine with the same names. Default: as root.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Change nothing, and show what would be done.")
@store_options
def import_users(source: Any, replaces: bool, unix_users: bool | None, dry_run: bool, store: Store) -> int:
    """Import users with their passwords from Samba: FILE is what "pdbedit -Lw" prints, or an smbpasswd file, or -.

    As root each acts as this machine's user of the same name, whatever number the list has. Users without one, users
    without a password and those that there are already are left out: the exit status is then 1. Accounts of machines
    are left out silently.

    \b
    Examples:
      pdbedit -Lw | smb3server user import -
      smb3server user import /etc/samba/smbpasswd --dry-run
    """
    from smb3server.cli.admin.users_view import Import

    found = Import(source.read(), store, replaces, unix_users)
    if dry_run:
        found.into(store.read())
    else:
        store.change(found.into)
    for line in found.lines:
        click.echo(line)
    click.echo(f"{'would import' if dry_run else 'imported'} {len(found.done)} users into {store.path}")
    if found.done and not dry_run:
        tell_servers(store.path)
    return EXIT_FAILED if found.missed else EXIT_DONE

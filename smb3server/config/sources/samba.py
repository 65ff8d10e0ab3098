"""Samba's configuration as one of this server: ``smb3server config import-smb-conf``. [smb.conf(5)]

What cannot be carried over becomes a comment with the reason.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from smb3server.config import toml
from smb3server.config.error import ConfigError
from smb3server.config.values import check_address, check_share_name, snapshot_pattern

SYNONYMS = {
    "writable": "!read only",
    "writeable": "!read only",
    "write ok": "!read only",
    "public": "guest ok",
    "directory": "path",
    "browsable": "browseable",
    "create mode": "create mask",
    "directory mode": "directory mask",
    "allow hosts": "hosts allow",
    "deny hosts": "hosts deny",
    "user": "valid users",
    "username": "valid users",
    "users": "valid users",
    "group": "force group",
    "casesignames": "case sensitive",
    "min protocol": "server min protocol",
    "protocol": "server max protocol",
    "max protocol": "server max protocol",
    "server smb encrypt": "smb encrypt",
    "debuglevel": "log level",
}
"""Other names of parameters. ``!`` means that the other one says the opposite."""
_TRUE, _FALSE = ("yes", "true", "1", "on"), ("no", "false", "0", "off")
_DIALECTS = {
    "smb2": "2.1",
    "smb2_02": "2.0.2",
    "smb2_10": "2.1",
    "smb3": "3.1.1",
    "smb3_00": "3.0",
    "smb3_02": "3.0.2",
    "smb3_11": "3.1.1",
}
_NO_COUNTERPART = "this server has nothing like it"
_NEEDLESS = "not needed here"
_ELSEWHERE = {
    "admin users": 'would act as root; name them in admins of [server], or set force_user = "root" for the share',
    "force group": "files belong to the group of the user; set the set-group-ID bit of the folder: chmod g+s",
    "invalid users": "write users = [...] without them",
    "include": "import that file by itself",
    "wide links": "symlinks that leave the share are never followed",
    "security": "users come with `smb3server user import`; a domain with a keytab",
    "passdb backend": "users come with `smb3server user import`",
    "realm": "set trusted_realms and keytab in [server]",
    "guest account": "set force_user for shares of guests",
    "log file": "the log goes to stderr, or to log_file",
    "max log size": "logrotate keeps the log small",
    "interfaces": "only addresses can be carried over; names of interfaces become addresses in listen",
    "bind interfaces only": "the server listens on the addresses of listen only",
    "usershare allow guests": "users of the machine cannot add shares; root does, with `smb3server share add`",
    "usershare max shares": "users of the machine cannot add shares; root does, with `smb3server share add`",
    "usershare path": "users of the machine cannot add shares; root does, with `smb3server share add`",
    "load printers": "printers are not shared",
    "printing": "printers are not shared",
    "printcap name": "printers are not shared",
    "wins support": "there is no NetBIOS; [discovery] announces the server",
    "disable netbios": "there is no NetBIOS",
    "local master": "there is no NetBIOS",
    "preferred master": "there is no NetBIOS",
    "domain master": "there is no NetBIOS",
    "os level": "there is no NetBIOS",
    "dns proxy": "there is no NetBIOS",
    "name resolve order": "there is no NetBIOS",
    "deadtime": "see idle_session_timeout in [limits]",
    "pid directory": "see state in [server]",
    "lock directory": "see state in [server]",
    "state directory": "see state in [server]",
    "cache directory": "see state in [server]",
    "private dir": "see state and users_file in [server]",
    "unix extensions": "these are of SMB1, which there is none of; see posix in [[share]]",
    "msdfs root": "write [[namespace]], with a [[namespace.link]] for each link of the folder (docs/dfs.md)",
    "msdfs proxy": "write [[namespace]], with a [[namespace.link]] to that share (docs/dfs.md)",
    "host msdfs": "a server with a [[namespace]] says so by itself (docs/dfs.md)",
    "recycle:touch": "files keep their times, and show in st_ctime when they were deleted",
    "recycle:versions": "always so: a name that is taken becomes Copy #1 of NAME",
    "recycle:keeptree": "always so: files keep their path below the recycle folder",
    "recycle:directory_mode": "each user's recycle folder is the user's alone",
    "full_audit:prefix": "records are lines of JSON with user, address and share (audit_file)",
    "full_audit:facility": "records go to audit_file, or to the log",
    "full_audit:priority": "records go to audit_file, or to the log",
    "fruit:metadata": "metadata are streams here; what Samba has stored is moved into them when it is looked at",
    "fruit:resource": "resource forks are streams here; what Samba has stored is moved into them when it is looked at",
    "fruit:encoding": "names are mapped in one way (docs/local-backend.md)",
    "fruit:posix_rename": "always so, as far as others have no files of the folder open",
    "fruit:veto_appledouble": "AppleDouble files are moved into streams",
    "fruit:nfs_aces": "always so",
    "fruit:zero_file_id": "always so",
    "fruit:delete_empty_adfiles": "always so",
    "fruit:wipe_intentionally_left_blank_rfork": "always so",
    "fruit:copyfile": "always so",
}
"""Why a parameter is not carried over, and what to do."""
_WITHOUT_MEANING = tuple(
    """server role, ncalrpc dir, obey pam restrictions, unix password sync, passwd program, passwd chat,
    pam password change, panic action, logging, socket options, use sendfile, aio read size, aio write size,
    client min protocol, client max protocol""".replace("\n    ", " ").split(", ")
)
_WITH_A_MODULE = ("recycle", "full_audit", "shadow_copy2", "fruit")
"""Modules that keys stand for."""
_CONSIDERED = ("available", "printable", "copy", "vfs objects", "full_audit:success", "full_audit:failure")
"""Parameters that were looked at, whatever came of it."""
_MODULES = {
    "acl_xattr": "descriptors are kept without a module",
    "streams_xattr": "streams are served without a module",
    "catia": "characters that Windows does not allow are mapped in one way (docs/local-backend.md)",
    "btrfs": "clones of ranges need no module",
    "io_uring": _NEEDLESS,
    "aio_pthread": _NEEDLESS,
}
"""Why modules of Samba are not carried over."""
_AUDITED = {
    "connect": "connect",
    "open": "open",
    "openat": "open",
    "create_file": "open",
    "opendir": "open",
    "mkdir": "create",
    "mkdirat": "create",
    "unlink": "delete",
    "unlinkat": "delete",
    "rmdir": "delete",
    "rename": "rename",
    "renameat": "rename",
    "write": "write",
    "pwrite": "write",
    "pwrite_send": "write",
    "chmod": "permission",
    "fchmod": "permission",
    "fset_nt_acl": "permission",
    "sys_acl_set_fd": "permission",
}
"""Events of the audit, by the operations of full_audit. [vfs_full_audit(8)]"""


class SambaError(ConfigError):
    """The file is not Samba's."""


@dataclass
class _Section:
    name: str
    values: dict[str, str] = field(default_factory=dict)


@dataclass
class _Block:
    """A section of the result."""

    header: str
    values: dict[str, object] = field(default_factory=dict)
    comments: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    """Lists that stay empty, so that nobody gets in."""

    def text(self) -> str:
        lines = [self.header, *(f"{key} = {toml.literal(value)}" for key, value in self.values.items())]
        return "\n".join([*lines, *(f"# {comment}" for comment in self.comments)]) + "\n"


def convert(file: Path) -> str:
    """Return the configuration of this server that does what Samba's ``file`` says. Raises ``SambaError``."""
    try:
        sections = parse(file.read_text(encoding="utf-8", errors="replace"), str(file))
    except OSError as error:
        raise SambaError(f"{file}: {error.strerror}") from error
    general = sections.pop("global", _Section("global")).values
    blocks = [_server(general), *_discovery(general)]
    inherited = {key: value for key, value in general.items() if _is_of_shares(key) and key not in _SERVER}
    for section in sections.values():
        values = inherited | _copied(section, sections)
        if "hosts deny" in values and "hosts allow" in general:
            values.setdefault("hosts allow", general["hosts allow"])
        block = _share(section.name, values, section.values)
        if block is not None:
            blocks.append(block)
    return f"# From {file}. Users: smb3server user import\n\n" + "\n".join(block.text() for block in blocks)


def parse(text: str, source: str = "smb.conf") -> dict[str, _Section]:
    """Read a file: sections by their case-folded names, with parameters by their names. Raises ``SambaError``."""
    sections: dict[str, _Section] = {}
    current: _Section | None = None
    joined = re.sub(r"\\[ \t]*\n", "", text)
    for number, raw in enumerate(joined.splitlines(), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("["):
            name = line[1:].partition("]")[0].strip()
            current = sections.setdefault(name.casefold(), _Section(name))
            continue
        key, separator, value = line.partition("=")
        if not separator or current is None:
            raise SambaError(f"{source}: line {number}: neither a section nor a parameter: {line[:60]}")
        _add(current.values, key, value.strip())
    return sections


def _add(values: dict[str, str], key: str, value: str) -> None:
    name = " ".join(key.casefold().replace("_", " ").split()) if ":" not in key else key.strip().casefold()
    target = SYNONYMS.get(name, name)
    if target.startswith("!"):
        target, truth = target[1:], _truth(value)
        value = value if truth is None else "no" if truth else "yes"
    values[target] = value


def _copied(section: _Section, sections: Mapping[str, _Section]) -> dict[str, str]:
    other = sections.get(section.values.get("copy", "").casefold())
    return {**(other.values if other is not None and other is not section else {}), **section.values}


def _truth(text: str) -> bool | None:
    word = text.casefold()
    return True if word in _TRUE else False if word in _FALSE else None


def _words(text: str) -> list[str]:
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|([^\s,;"]+)', text)]


def _users(text: str) -> list[str]:
    """Convert a list of users: ``@group``, ``+group`` and ``&group`` are groups of the host."""
    found = []
    for word in _words(text):
        name = word.lstrip("@+&")
        plain = name.rpartition("\\")[2]
        if "%" in plain:
            raise ValueError("macros are not known here")
        found.append(f"@@{plain}" if name != word else plain)
    return found


def _hosts(text: str) -> list[str]:
    """Convert addresses, networks with masks, and the beginnings of addresses (``192.168.1.``)."""
    found: list[str] = []
    for word in _words(text):
        if word.casefold() == "all":
            found += ["0.0.0.0/0", "::/0"]
        elif word.casefold() == "localhost":
            found += ["127.0.0.0/8", "::1"]
        elif re.fullmatch(r"(\d{1,3}\.){1,3}", word):
            given = word.rstrip(".").split(".")
            found.append(f"{'.'.join([*given, *['0'] * (4 - len(given))])}/{8 * len(given)}")
        else:
            found.append(str(ipaddress.ip_network(word, strict=False)))
    return found


def _patterns(text: str) -> list[str]:
    """Convert ``/pattern/pattern/``."""
    return [entry for entry in text.split("/") if entry]


def _mode(text: str) -> str:
    number = int(text, 8)
    if number & ~0o777:
        raise ValueError("only permissions of read, write and execute can be set")
    return f"{number:04o}"


def _size(text: str) -> int:
    """Convert a number of bytes, with K, M, G, T or P."""
    found = re.fullmatch(r"(\d+)\s*([kmgtp]?)b?", text.casefold())
    if found is None:
        raise ValueError("no size")
    return int(found[1]) << 10 * " kmgtp".index(found[2] or " ")


def _yes_or_no(text: str) -> bool:
    truth = _truth(text)
    if truth is None:
        raise ValueError("neither yes nor no")
    return truth


def _not(text: str) -> bool:
    return not _yes_or_no(text)


def _is_required(text: str) -> bool:
    word = text.casefold()
    if word in ("desired", "if_required", "enabled"):
        raise ValueError("clients decide where it is not required")
    return word in ("required", "mandatory", "force", "forced")


def _plain(text: str) -> str:
    if "%" in text:
        raise ValueError("macros are not known here")
    return text


def _case(text: str) -> bool:
    return False if text.casefold() == "auto" else _yes_or_no(text)


_SHARE: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "comment": ("comment", _plain),
    "read only": ("read_only", _yes_or_no),
    "guest ok": ("guest", _yes_or_no),
    "browseable": ("hidden", _not),
    "valid users": ("users", _users),
    "read list": ("read_list", _users),
    "write list": ("write_list", _users),
    "hosts allow": ("hosts_allow", _hosts),
    "hosts deny": ("hosts_deny", _hosts),
    "veto files": ("veto_files", _patterns),
    "hide files": ("hide_files", _patterns),
    "hide dot files": ("hide_dot_files", _yes_or_no),
    "hide unreadable": ("access_based_enumeration", _yes_or_no),
    "access based share enum": ("access_based_enumeration", _yes_or_no),
    "create mask": ("create_mask", _mode),
    "directory mask": ("directory_mask", _mode),
    "force create mode": ("force_create_mode", _mode),
    "force directory mode": ("force_directory_mode", _mode),
    "force user": ("force_user", _plain),
    "max connections": ("max_connections", int),
    "case sensitive": ("case_sensitive", _case),
    "smb3 unix extensions": ("posix", _yes_or_no),
    "smb encrypt": ("encrypt", _is_required),
    "strict allocate": ("strict_allocate", _yes_or_no),
    "posix locking": ("posix_locks", _yes_or_no),
    "level2 oplocks": ("level2_oplocks", _yes_or_no),
    "strict rename": ("rename_open_folders", _not),
    "change notify": ("change_notify", _yes_or_no),
    "kernel change notify": ("change_notify", _yes_or_no),
    "recycle:repository": ("recycle_folder", lambda text: text.replace("%U", "{user}").replace("%u", "{user}")),
    "recycle:exclude": ("recycle_exclude", _words),
    "recycle:maxsize": ("recycle_max_size", int),
    "fruit:time machine": ("time_machine", _yes_or_no),
    "fruit:time machine max size": ("time_machine_max_size", _size),
}
"""Parameters of shares: the key here, and how the value is converted."""
_SERVER: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "netbios name": ("name", _plain),
    "server string": ("comment", lambda text: re.sub(r"\s*\(?%\w\)?\s*", " ", text).strip() or "smb3server"),
    "smb ports": ("port", lambda text: int(_words(text)[0])),
    "server min protocol": ("min_dialect", lambda text: _DIALECTS[text.casefold()]),
    "server max protocol": ("max_dialect", lambda text: _DIALECTS[text.casefold()]),
    "server signing": ("require_signing", _is_required),
    "smb encrypt": ("require_encryption", _is_required),
    "map to guest": ("guest", lambda text: text.casefold().replace(" ", "") in ("baduser", "badpassword", "baduid")),
    "server multi channel support": ("multichannel", _yes_or_no),
    "dedicated keytab file": ("keytab", lambda text: text.removeprefix("FILE:")),
    # In [global] they count for all shares, whatever these say.
    "hosts allow": ("hosts_allow", _hosts),
    "hosts deny": ("hosts_deny", _hosts),
}
_RESTRICTING = {
    "valid users": "users",
    "invalid users": "users",
    "hosts allow": "hosts_allow",
    "hosts deny": "hosts_allow",
}
"""Parameters that keep somebody out, and the key that keeps everybody out if they cannot be carried over."""


def _convert(
    block: _Block, values: Mapping[str, str], table: Mapping[str, tuple[str, Callable[[str], object]]]
) -> Iterator[str]:
    """Convert the parameters of a table into ``block``; yield those that are not in it."""
    for name, text in values.items():
        entry = table.get(name)
        if entry is None:
            yield name
            continue
        key, convert_value = entry
        try:
            block.values[key] = convert_value(text)
        except (ValueError, KeyError, IndexError) as error:
            reason = "no such value here" if isinstance(error, KeyError) else str(error)
            block.comments.append(f"{name} = {text}: not carried over: {reason}")
            _keep_out(block, name)


def _is_of_shares(name: str) -> bool:
    """Return whether a parameter of [global] is a default of the shares."""
    return name in _SHARE or name == "vfs objects" or name.startswith(("full_audit:", "shadow:"))


def _server(values: Mapping[str, str]) -> _Block:
    block = _Block("[server]")
    for name in _convert(block, values, _SERVER):
        if name == "interfaces":
            _interfaces(block, values[name])
        elif name == "vfs objects":
            _modules(block, values[name])
        elif not _is_of_shares(name) and name not in ("workgroup", "fruit:model"):
            _leave_out(block, name, values[name])
    text = values.get("server string", "")
    if "%" in text:
        block.comments.append(f"server string = {text}: macros are not known here and were left out")
    for key in ("require_signing", "require_encryption", "guest"):
        if block.values.get(key) is False:
            del block.values[key]
    _settle_hosts(block)
    block.values.update({key: [] for key in block.closed})
    return block


def _discovery(values: Mapping[str, str]) -> Iterator[_Block]:
    """Convert what announcements tell, if it is not the default."""
    block = _Block("[discovery]", comments=["This section announces the server, by mDNS and WS-Discovery."])
    if values.get("workgroup", "WORKGROUP").casefold() != "workgroup":
        block.values["workgroup"] = values["workgroup"]
    if "fruit:model" in values:
        block.values["model"] = values["fruit:model"]
    if block.values:
        yield block


def _keep_out(block: _Block, name: str) -> None:
    """Let nobody in if a parameter that keeps somebody out is not carried over."""
    if name in _RESTRICTING:
        block.closed.add(_RESTRICTING[name])
        block.comments.append(f"    Until it is mended, {_RESTRICTING[name]} = [] keeps everybody out.")


def _interfaces(block: _Block, text: str) -> None:
    listen, left = [], []
    for word in _words(text):
        address = word.split(";")[0].partition("/")[0]
        try:
            check_address(address)
        except ConfigError:
            left.append(word)
        else:
            listen.append(address)
    if left:
        block.comments.append(f"interfaces = {' '.join(left)}: write their addresses to listen")
    elif listen:
        block.values["listen"] = listen


def _leave_out(block: _Block, name: str, text: str) -> None:
    if name not in _CONSIDERED:
        reason = _ELSEWHERE.get(name) or (_NEEDLESS if name in _WITHOUT_MEANING else _NO_COUNTERPART)
        block.comments.append(f"{name} = {text}: not carried over: {reason}")


def _share(name: str, values: Mapping[str, str], own: Mapping[str, str]) -> _Block | None:
    """Convert one share. None for what is not one."""
    if name.casefold() in ("printers", "print$") or _truth(values.get("printable", "no")):
        return _Block(f"# [{name}]: printers are not shared")
    is_homes = name.casefold() == "homes"
    block = _Block("[homes]" if is_homes else "[[share]]")
    path = values.get("path", "%H" if is_homes else "")
    try:
        if is_homes:
            block.values["path"] = re.sub("%[SUu]", "{user}", path.replace("%H", "/home/{user}"))
        else:
            check_share_name(name)
            if re.search("%[SUu]", path):
                raise ValueError("a share has one folder for all; [homes] has one for each user, {user} in its path")
            block.values |= {"name": name, "path": _plain(path)}
        if not path or _truth(values.get("available", "yes")) is False:
            raise ValueError("it has no path" if not path else "it is not available")
    except (ValueError, ConfigError) as error:
        said = [f"    {key} = {value}" for key, value in own.items() if key != "path"]
        return _Block(f"# [{name}]: path = {path}: not carried over: {error}", comments=said)
    # Samba's defaults that differ: shares are read-only, and names that begin with a dot are hidden.
    block.values |= {"read_only": True, "hide_dot_files": True}
    # A home is its user's alone here as well.
    implied = {"path", "copy"} | ({"valid users"} if is_homes and values.get("valid users") in ("%S", "%U") else set())
    rest = _convert(block, {key: value for key, value in values.items() if key not in implied}, _SHARE)
    left = [key for key in rest if key in own]
    for key in left:
        if key == "follow symlinks":
            block.values["symlinks"] = "beneath" if _truth(own[key]) else "never"
        elif key == "vfs objects":
            _modules(block, own[key])
        elif key not in _SHADOW:
            _leave_out(block, key, own[key])
            _keep_out(block, key)
    if "shadow_copy2" in _words(values.get("vfs objects", "")):
        _shadow(block, values)
    if "full_audit" in _words(values.get("vfs objects", "")):
        _audit(block, values)
    if "fruit" in _words(values.get("vfs objects", "")):
        if not block.values.get("time_machine"):
            block.values["macos"] = True
    else:
        for key in ("time_machine", "time_machine_max_size"):
            block.values.pop(key, None)
    if "recycle" not in _words(values.get("vfs objects", "")):
        for key in [key for key in block.values if key.startswith("recycle")]:
            del block.values[key]
    else:
        block.values |= {"recycle": True, "recycle_folder": block.values.get("recycle_folder", ".recycle")}
    _settle(block, is_homes)
    return block


def _modules(block: _Block, text: str) -> None:
    for word in _words(text):
        if word not in _WITH_A_MODULE:
            block.comments.append(f"vfs objects = {word}: not carried over: {_MODULES.get(word, _NO_COUNTERPART)}")


_SHADOW = frozenset(["shadow:snapdir", "shadow:format", "shadow:localtime", "shadow:sort", "shadow:fixinodes"])
"""Parameters of shadow_copy2 that were looked at. The last two say nothing that matters here."""


def _shadow(block: _Block, values: Mapping[str, str]) -> None:
    """Convert shadow_copy2: folder and format of its snapshots to one pattern."""
    folder = values.get("shadow:snapdir", ".snapshots").rstrip("/")
    pattern = f"{folder}/{values.get('shadow:format', '@GMT-%Y.%m.%d-%H.%M.%S')}"
    others = [key for key in values if key.startswith("shadow:") and key not in _SHADOW]
    try:
        if others:
            raise ValueError(f"{', '.join(others)}: write the pattern of the snapshots by hand")
        snapshot_pattern(pattern, str(block.values["path"]), "utc")
    except (ValueError, ConfigError) as error:
        block.comments.append(f"vfs objects = shadow_copy2: not carried over: {error} (docs/previous-versions.md)")
        return
    block.values["snapshots"] = pattern
    if _truth(values.get("shadow:localtime", "no")):
        block.values["snapshot_times"] = "local"


def _audit(block: _Block, values: Mapping[str, str]) -> None:
    """Convert full_audit: the operations that succeed to kinds of events, any that fail to ``denied``."""
    every = dict.fromkeys(_AUDITED.values())
    success = _words(values.get("full_audit:success", "none"))
    found: dict[str, None] = dict(every) if "all" in success else {}
    for word in success:
        name = word.removeprefix("!")
        if name in _AUDITED and word == name:
            found[_AUDITED[name]] = None
        elif name in _AUDITED:
            found.pop(_AUDITED[name], None)
        elif name not in ("all", "none"):
            block.comments.append(f"full_audit:success = {word}: not carried over: this operation is not recorded")
    if values.get("full_audit:failure", "none") != "none":
        found["denied"] = None
    if found:
        block.values |= {"audit": True, "audit_events": list(found)}
    else:
        block.comments.append("vfs objects = full_audit: it records nothing")


def _settle_hosts(block: _Block) -> None:
    values = block.values
    if "hosts_allow" in values and "hosts_deny" in values:
        # In Samba the first list wins, and who is on neither gets in. Here the second one would win.
        denied = values.pop("hosts_deny")
        if denied != ["0.0.0.0/0", "::/0"]:
            block.comments.append(f"hosts deny = {denied}: not carried over: hosts_allow alone says who gets in")


def _settle(block: _Block, is_homes: bool) -> None:
    """Leave out what is the default, and what contradicts something else."""
    values = block.values
    if not values["read_only"]:
        # Everybody writes: the list adds nobody.
        values.pop("write_list", None)
    writers, readers = values.get("write_list"), values.get("read_list")
    if isinstance(writers, list) and isinstance(readers, list):
        # Samba lets the write list win.
        readers[:] = [name for name in readers if name not in writers]
    _settle_hosts(block)
    values.update({key: [] for key in block.closed})
    defaults: dict[str, object] = {
        "read_only": False,
        "guest": False,
        "hidden": False,
        "encrypt": False,
        "hide_dot_files": False,
        "case_sensitive": False,
        "posix": False,
        "time_machine": False,
        "max_connections": 0,
    }
    if is_homes:
        values.pop("hidden", None)
    for key, default in defaults.items():
        if values.get(key) == default:
            values.pop(key, None)

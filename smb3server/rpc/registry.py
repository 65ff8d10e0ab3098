"""What the registry of a Windows server says, made of this server's state when it is asked for. Nothing is stored.

A key is here if this server has a setting or a fact for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from smb3server import __version__
from smb3server.rpc import services
from smb3server.rpc.srvsvc import VERSION_MAJOR, VERSION_MINOR
from smb3server.rpc.srvsvc_lists import shown_path
from smb3server.state.server_state import ServerState
from smb3server.state.share import Share, ShareType

REG_SZ, REG_BINARY, REG_DWORD, REG_MULTI_SZ = 1, 3, 4, 7
"""Types of values. [MS-RRP 3.1.1.5]"""
_UNLIMITED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a key."""

    name: str
    type: int
    data: bytes


def _nothing() -> tuple[()]:
    return ()


@dataclass(frozen=True, slots=True)
class Key:
    """A key. What is in it is made when somebody looks."""

    name: str
    below: Callable[[], tuple[Key, ...]] = _nothing
    values: Callable[[], tuple[Value, ...]] = _nothing

    def find(self, path: str) -> Key | None:
        """Return the key below this one at a path with backslashes, in any case. An empty path is this one."""
        found = self
        for part in path.split("\\") if path else ():
            next_one = next((key for key in found.below() if key.name.casefold() == part.casefold()), None)
            if next_one is None:
                return None
            found = next_one
        return found

    def value(self, name: str) -> Value | None:
        """Return the value of this name, in any case."""
        return next((value for value in self.values() if value.name.casefold() == name.casefold()), None)


def _text(name: str, value: str) -> Value:
    return Value(name, REG_SZ, (value + "\0").encode("utf-16-le"))


def _number(name: str, value: int) -> Value:
    return Value(name, REG_DWORD, (value & 0xFFFFFFFF).to_bytes(4, "little"))


def _lines(name: str, lines: list[str]) -> Value:
    return Value(name, REG_MULTI_SZ, ("".join(f"{line}\0" for line in lines) + "\0").encode("utf-16-le"))


def _folder(name: str, *keys: Key) -> Key:
    return Key(name, lambda: keys)


def local_machine(server: ServerState) -> Key:
    """Return HKEY_LOCAL_MACHINE."""
    version = Key("CurrentVersion", values=_version)
    name = Key("ComputerName", values=lambda: (_text("ComputerName", server.settings.server_name),))
    active = Key("ActiveComputerName", values=name.values)
    product = Key("ProductOptions", values=lambda: (_text("ProductType", "ServerNT"),))
    control = _folder("Control", _folder("ComputerName", active, name), product)
    below = Key("Services", lambda: tuple(_service(server, one) for one in services.running(server)))
    return _folder(
        "HKEY_LOCAL_MACHINE",
        _folder("SOFTWARE", _folder("Microsoft", _folder("Windows NT", version))),
        _folder("SYSTEM", _folder("CurrentControlSet", control, below)),
    )


def _version() -> tuple[Value, ...]:
    """Return who serves here, and the version of Windows that NetrServerGetInfo tells."""
    return (
        _text("ProductName", f"smb3server {__version__}"),
        _text("CurrentVersion", f"{VERSION_MAJOR}.{VERSION_MINOR}"),
        _number("CurrentMajorVersionNumber", VERSION_MAJOR),
        _number("CurrentMinorVersionNumber", VERSION_MINOR),
    )


def _service(server: ServerState, service: services.Service) -> Key:
    values = (
        _text("DisplayName", service.display_name),
        _text("Description", service.description),
        _number("Type", services.SHARE_PROCESS),
        _number("Start", services.AUTO_START),
        _number("ErrorControl", services.ERROR_NORMAL),
        _text("ImagePath", services.program()),
        _text("ObjectName", services.account()),
    )
    below: tuple[Key, ...] = ()
    if service is services.SERVER:
        security = Key("Security", values=lambda: tuple(_permissions(server)))
        shares = Key("Shares", lambda: (security,), lambda: tuple(_share(one) for one in _disks(server)))
        below = (Key("Parameters", values=lambda: _parameters(server)), shares)
    return Key(service.name, lambda: below, lambda: values)


def _parameters(server: ServerState) -> tuple[Value, ...]:
    """Return the settings that Windows keeps here. SMB2 signing can be asked for always."""
    settings = server.settings
    return (
        _text("srvcomment", settings.comment),
        _number("EnableSecuritySignature", 1),
        _number("RequireSecuritySignature", settings.require_signing),
        _number("EncryptData", settings.require_encryption),
        _number("RestrictNullSessAccess", not settings.allow_anonymous),
        _number("MinSmb2Dialect", settings.min_dialect),
        _number("MaxSmb2Dialect", settings.max_dialect),
        _number("SMB1", 0),
        _number("SMB2", 1),
    )


def _disks(server: ServerState) -> Iterator[Share]:
    yield from (share for share in server.share_list.values() if share.type is ShareType.DISK)


def _share(share: Share) -> Value:
    rules = share.rules
    lines = [
        f"CSCFlags={share.caching_flags}",
        f"MaxUses={rules.max_connections or _UNLIMITED}",
        f"Path={shown_path(share.path)}",
        "Permissions=0",
        f"Remark={rules.comment}",
        f"ShareName={share.name}",
        "Type=0",
    ]
    return _lines(share.name, lines)


def _permissions(server: ServerState) -> Iterator[Value]:
    """Return the descriptors of the shares that have one."""
    for share in _disks(server):
        if share.permissions is not None:
            yield Value(share.name, REG_BINARY, share.permissions.pack())

"""An etcd of the test's own, on loopback; one with TLS and users, too."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from smb3server.net.store_access import StoreAccess
from tools.cluster import etcd
from tools.cluster.certificates import Authority
from tools.cluster.etcd import local_members

USER, PASSWORD, ROOT_PASSWORD = "smb", "pw", "rootpw"
PREFIX = "smb3server/"
"""Of the keys that the user may read and write."""
TOKEN_TTL = 1
"""Seconds after its last use for which a token is good, give or take one."""


class Etcd(etcd.Etcd):
    def __init__(
        self, folder: Path, members: int = 1, tls: Authority | None = None, more: tuple[str, ...] = ()
    ) -> None:
        if reason := etcd.why_not():
            pytest.skip(reason)
        super().__init__(folder, local_members(members), tls, more)


class SecuredEtcd(Etcd):
    """With client certificates and a user whose role is limited to ``PREFIX``."""

    def __init__(self, folder: Path, members: int = 1) -> None:
        self.authority = Authority(folder)
        self.client = self.authority.issue("client", ())
        # Hashing a password is dear by default: on a busy machine longer than one of the attempts that a request has.
        more = (f"--auth-token-ttl={TOKEN_TTL}", "--bcrypt-cost=4")
        super().__init__(folder, members, self.authority, more)
        self.password_file = folder / "password"
        self.password_file.touch(mode=0o600)
        self.password_file.write_text(f"{PASSWORD}\n")
        self.secret_file = folder / "cluster.secret"
        self.secret_file.touch(mode=0o600)
        self.secret_file.write_text("0123456789abcdef\n")

    @property
    def access(self) -> StoreAccess:
        """What lets a node in."""
        return StoreAccess(
            self.authority.ca, self.client.cert, self.client.key, USER, self.password_file, self.secret_file
        )

    @property
    def options(self) -> str:
        """The same in a node's section [cluster]."""
        access = self.access
        return "".join(
            f'{key} = "{getattr(access, key)}"\n'
            for key in ("ca", "cert", "key", "user", "password_file", "secret_file")
        )

    @property
    def arguments(self) -> list[str]:
        """The same for ``smb3server cluster``."""
        access = self.access
        keys = ("ca", "cert", "key", "user", "password_file", "secret_file")
        return [text for key in keys for text in (f"--{key.replace('_', '-')}", str(getattr(access, key)))]

    def start(self, member: int | None = None, wait: bool = True) -> None:
        super().start(member, wait)
        if member is None:
            self._enable()

    def _enable(self) -> None:
        for user, password in (("root", ROOT_PASSWORD), (USER, PASSWORD)):
            self.ask("auth/user/add", {"name": user, "password": password})
            self.ask("auth/role/add", {"name": user})
            self.ask("auth/user/grant", {"user": user, "role": user})
        ends = PREFIX, PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1)
        start, end = (base64.b64encode(text.encode()).decode() for text in ends)
        self.ask("auth/role/grant", {"name": USER, "perm": {"permType": "READWRITE", "key": start, "range_end": end}})
        self.ask("auth/enable", {})

    def ask(self, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
        """One request to the gateway of the first member."""
        context = ssl.create_default_context(cafile=self.authority.ca)
        context.load_cert_chain(self.client.cert, self.client.key)
        request = urllib.request.Request(
            f"https://{self.members[0].client}/v3/{path}",
            json.dumps(body).encode(),
            {"Authorization": token} if token else {},
        )
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            found = json.loads(answer.read())
        assert isinstance(found, dict)
        return found

    def as_root(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        token = self.ask("auth/authenticate", {"name": "root", "password": ROOT_PASSWORD})["token"]
        return self.ask(path, body, token)

    def ask_put(self, key: str, value: bytes) -> None:
        """As somebody who may write to etcd, and has no cluster secret."""
        body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value).decode()}
        self.as_root("kv/put", body)

    @property
    def plain_address(self) -> str:
        """Where the first member speaks no TLS."""
        return self._health[0]

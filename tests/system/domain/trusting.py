"""Two forests of Samba that trust each other: EXAMPLE, which has the member, and OTHER. [MS-ADTS 6.1.6]"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.system.domain.controller import Controller, Domain
from tools.cluster.network import Network

_LARGEST = 4096


class OtherDomain(Domain):
    """The forest OTHER, with one controller. A member of EXAMPLE has no account in it."""

    realm, workgroup = "OTHER.TEST", "OTHER"
    members = ("odc1", "odc2")


class Forwarder:
    """Sends questions about names to the controller of their domain, as conditional forwarders do. [RFC 1035]"""

    def __init__(self, network: Network, member: str, controllers: Sequence[Controller]) -> None:
        """Serve on a machine of the network, on a thread."""
        self._servers = {_encoded(one.name.partition(".")[2]): one.address for one in controllers}
        self._ended = threading.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=network.run, args=(member, lambda: self._serve(ready)))
        self._thread.start()
        assert ready.wait(10)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _serve(self, ready: threading.Event) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
            door.bind(("", 53))
            ready.set()
            while not self._ended.is_set():
                if select.select([door], [], [], 0.2)[0]:
                    question, client = door.recvfrom(_LARGEST)
                    answer = self._answer(question)
                    if answer is not None:
                        door.sendto(answer, client)

    def _answer(self, question: bytes) -> bytes | None:
        """Return the answer of the name's controller, or that there is no such name. None: the controller is silent."""
        folded = question.lower()
        address = next((address for suffix, address in self._servers.items() if suffix in folded), None)
        if address is None:
            return question[:2] + b"\x81\x83" + question[4:]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(2)
            asking.connect((address, 53))
            asking.send(question)
            try:
                return asking.recv(_LARGEST)
            except OSError:
                return None


def _encoded(name: str) -> bytes:
    """Return a name as questions have it."""
    return b"".join(bytes((len(label),)) + label.encode() for label in name.split(".")) + b"\0"


class Forests:
    """Both forests, their trust, and the machines "member" and "client"."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Network(["dc1", "member", "client", "dc2", "odc1", "odc2", "names"])
        self.own, self.other = (kind(self._made(kind.workgroup), self.network) for kind in (Domain, OtherDomain))
        self._forwarder: Forwarder | None = None

    def _made(self, name: str) -> Path:
        made = self.folder / name
        made.mkdir()
        return made

    def up(self) -> None:
        """Make both, and the trust. Raises ``CalledProcessError`` and ``TimeoutError``."""
        self.network.up()
        self._forwarder = Forwarder(self.network, "names", (self.own.first, self.other.first))
        for domain in (self.own, self.other):
            domain.forwarder = self.network.address("names")
            domain.up()
        self.own.tool(
            "domain",
            "trust",
            "create",
            self.other.realm.lower(),
            "--type=forest",
            "--direction=both",
            "--create-location=both",
            f"-U{self.other.workgroup}\\Administrator%{self.other.password}",
            f"--local-dc-username={self.own.workgroup}\\Administrator",
            f"--local-dc-password={self.own.password}",
        )

    def environment(self, cache: str) -> dict[str, str]:
        """Return the environment of a client of the other forest, which knows no more than where the KDCs are."""
        file = self.folder / "krb5.conf"
        kdcs = (f" {one.realm} = {{\n  kdc = {one.address}\n }}\n" for one in (self.own, self.other))
        text = f"[libdefaults]\n default_realm = {self.other.realm}\n rdns = false\n dns_lookup_realm = false\n"
        file.write_text(f"{text}[realms]\n{''.join(kdcs)}")
        return {"KRB5_CONFIG": str(file), "KRB5CCNAME": str(self.folder / cache)}

    def down(self) -> None:
        """End all that ``up`` has started."""
        for domain in (self.own, self.other):
            domain.down()
        if self._forwarder is not None:
            self._forwarder.close()
        self.network.down()

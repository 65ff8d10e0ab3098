"""Names and SIDs of the domain, asked of a controller and remembered. [MS-LSAT 3.1.4.5, 3.1.4.9]

The machine account asks, over a sealed connection: who is on the way can neither read nor change the answers. A
controller also knows names of the domains that its own trusts.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Protocol

from smb3server.access.descriptor import Sid
from smb3server.auth.directory import Known, Use
from smb3server.domain.user import NoController

_LIFETIME, _NEGATIVE_LIFETIME = 3600.0, 60.0
"""Seconds for which names, and that there is no such name, are believed."""
_MAX_ENTRIES = 8192
LSARPC = "12345778-1234-abcd-ef00-0123456789ab"
"""The interface, version 0. [MS-LSAT 1.9]"""
_MEMBERS_LEVEL = 2
"""LsapLookupPDC: a controller looks in its own domain and in those that it trusts. [MS-LSAT 2.2.16]"""
_DONE = (0, 0x00000107, 0xC0000073)
"""All, some and none of the names are known."""
_AT_ONCE = 256
"""Names of one request."""


class SealedCalls(Protocol):
    """Calls a controller over the secure channel of the machine account. [MS-NRPC 3.3]"""

    def call(self, interface: str, opnum: int, stub: bytes) -> bytes:
        """Return the answer's stub. Blocks. Raises ``NoController``."""
        ...


class Source(Protocol):
    """Who knows names."""

    def of_sids(self, sids: Collection[Sid]) -> list[Known | None]:
        """Return what is known of each SID. Blocks. Raises ``NoController``."""
        ...

    def of_names(self, names: Collection[str]) -> list[Known | None]:
        """Return what is known of each name ``DOMAIN\\name``. Blocks. Raises ``NoController``."""
        ...


class Names:
    """What is known of names and SIDs. Look-ups and answers may come from several threads."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._by_sid: OrderedDict[Sid, tuple[float, Known | None]] = OrderedDict()
        self._by_name: OrderedDict[str, tuple[float, Known | None]] = OrderedDict()

    def by_sid(self, sid: Sid) -> Known | None:
        """Return what is remembered of a SID, however old it is."""
        found = self._by_sid.get(sid)
        return found[1] if found is not None else None

    def by_name(self, name: str) -> Known | None:
        """Return what is remembered of a name ``DOMAIN\\name``, however old it is."""
        found = self._by_name.get(name.casefold())
        return found[1] if found is not None else None

    def unsure_sids(self, sids: Collection[Sid]) -> list[Sid]:
        """Return those of which nothing is remembered that is believed."""
        return [sid for sid in sids if self._by_sid.get(sid, (0.0,))[0] <= self._clock()]

    def unsure_names(self, names: Collection[str]) -> list[str]:
        """Return those of which nothing is remembered that is believed."""
        return [name for name in names if self._by_name.get(name.casefold(), (0.0,))[0] <= self._clock()]

    def has_asked(self, name: str) -> bool:
        """Return whether a controller has ever answered about a name."""
        return name.casefold() in self._by_name

    def remember(self, known: Known) -> None:
        """Remember what a controller has said."""
        self._keep(self._by_sid, known.sid, known)
        self._keep(self._by_name, f"{known.domain}\\{known.name}".casefold(), known)

    def ask(self, sids: Collection[Sid] = (), names: Collection[str] = ()) -> None:
        """Ask for what is not remembered. Blocks. Raises ``NoController``."""
        wanted = self.unsure_sids(sids)
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start : start + _AT_ONCE]
            for sid, known in zip(part, self._source.of_sids(part), strict=True):
                self._keep(self._by_sid, sid, known)
        asked = self.unsure_names(names)
        for start in range(0, len(asked), _AT_ONCE):
            texts = asked[start : start + _AT_ONCE]
            for text, known in zip(texts, self._source.of_names(texts), strict=True):
                self._keep(self._by_name, text.casefold(), known)
                if known is not None:
                    self._keep(self._by_sid, known.sid, known)

    def _keep(self, table: OrderedDict[Any, tuple[float, Known | None]], key: Any, known: Known | None) -> None:
        with self._lock:
            table.pop(key, None)
            while len(table) >= _MAX_ENTRIES:
                table.popitem(last=False)
            table[key] = self._clock() + (_LIFETIME if known is not None else _NEGATIVE_LIFETIME), known


class ControllerNames:
    """The ``Source`` that asks a controller by LSARPC."""

    def __init__(self, calls: SealedCalls) -> None:
        self._calls = calls

    def of_sids(self, sids: Collection[Sid]) -> list[Known | None]:
        lsat, dtypes = _layouts()
        request = lsat.LsarLookupSids3()
        request["SidEnumBuffer"]["Entries"] = len(sids)
        for sid in sids:
            entry = lsat.LSAPR_SID_INFORMATION()
            entry["Sid"].fromCanonical(str(sid))
            request["SidEnumBuffer"]["SidInfo"].append(entry)
        request["TranslatedNames"]["Names"] = dtypes.NULL
        answer = self._ask(request, lsat.LsarLookupSids3Response)
        entries = _entries(answer["TranslatedNames"]["Names"], len(sids))
        return [
            _known(entry, answer, sid, _text(entry["Name"])) if entry is not None else None
            for sid, entry in zip(sids, entries, strict=True)
        ]

    def of_names(self, names: Collection[str]) -> list[Known | None]:
        lsat, dtypes = _layouts()
        request = lsat.LsarLookupNames4()
        request["Count"] = len(names)
        for name in names:
            text = dtypes.RPC_UNICODE_STRING()
            text["Data"] = name
            request["Names"].append(text)
        request["TranslatedSids"]["Sids"] = dtypes.NULL
        answer = self._ask(request, lsat.LsarLookupNames4Response)
        entries = _entries(answer["TranslatedSids"]["Sids"], len(names))
        return [
            _known(entry, answer, _sid(entry["Sid"]), name.rpartition("\\")[2]) if entry is not None else None
            for name, entry in zip(names, entries, strict=True)
        ]

    def _ask(self, request: Any, response: Any) -> Any:
        """Return the decoded answer. Raises ``NoController``."""
        request["LookupLevel"] = _MEMBERS_LEVEL
        request["LookupOptions"], request["ClientRevision"] = 0, 2
        answer = self._calls.call(LSARPC, request.opnum, request.getData())
        try:
            decoded = response(answer)
            status = int(decoded["ErrorCode"])
        except Exception as error:
            # impacket's decoder may raise any exception for malformed input.
            raise NoController(f"a malformed answer to a look-up: {error!r}"[:200]) from error
        if status not in _DONE:
            raise NoController(f"the controller refuses a look-up: 0x{status:08x}")
        return decoded


def _layouts() -> tuple[Any, Any]:
    return importlib.import_module("impacket.dcerpc.v5.lsat"), importlib.import_module("impacket.dcerpc.v5.dtypes")


def _entries(array: Any, count: int) -> list[Any]:
    """Return the entries of an answer, one for each that was asked for. None of one means that it is not known."""
    found = [] if isinstance(array, bytes) else list(array)
    if len(found) not in (0, count):
        raise NoController(f"{len(found)} answers to {count} look-ups")
    return found or [None] * count


def _text(decoded: Any) -> str:
    return decoded if isinstance(decoded, str) else ""


def _sid(decoded: Any) -> Sid | None:
    return None if isinstance(decoded, bytes) else Sid.parse(decoded.formatCanonical())


def _known(entry: Any, answer: Any, sid: Sid | None, name: str) -> Known | None:
    """Return one entry of an answer. None means that it is not known."""
    domains = answer["ReferencedDomains"]
    index = int(entry["DomainIndex"])
    if sid is None or isinstance(domains, bytes) or not 0 <= index < len(domains["Domains"]):
        return None
    try:
        use = Use(int(entry["Use"]))
    except ValueError:
        # A deleted account, a computer, a label.
        return None
    return Known(sid, use, _text(domains["Domains"][index]["Name"]), name) if use is not Use.UNKNOWN else None

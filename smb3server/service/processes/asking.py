"""Process 1 asks the others, so that its admin socket, metrics and web page speak for all processes.

A process that does not answer is named, and the others go on: it may be starting anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from smb3server.admin.socket import Answer, Command, RefusedError, ask
from smb3server.config.error import ConfigError
from smb3server.config.processes import FIRST
from smb3server.process.own_files import mark_of
from smb3server.service.admin.clients import choose
from smb3server.service.admin.shares import ShareAdmin
from smb3server.service.namespaces import RunningNamespaces
from smb3server.service.processes.member import Member
from smb3server.service.processes.merging import merge_metrics, merge_reports
from smb3server.service.reload import Outcome
from smb3server.service.running_shares import RunningShares
from smb3server.service.users import LiveUsers
from smb3server.status.model import Report

log = logging.getLogger(__name__)

Json = dict[str, Any]
PATIENCE = 3.0
"""Seconds for an answer that is only looked at."""
RELOAD_PATIENCE = 60.0
LOOK_FOR_USERS = 2.0
"""Seconds between two looks at the users file: a user may have changed the password in another process."""


class Served(Protocol):
    """What this module needs of the service of its process."""

    shares: RunningShares
    namespaces: RunningNamespaces
    share_admin: ShareAdmin
    users: LiveUsers


async def ask_others(
    member: Member, command: str, request: Mapping[str, Any], timeout: float = PATIENCE
) -> dict[int, Json]:
    """Ask all other processes at once, and return their answers. One that does not answer has an ``error``."""
    arguments = {key: value for key, value in request.items() if key != "command"}

    async def one(path: Path) -> Json:
        try:
            return await asyncio.to_thread(ask, path, command, timeout, **arguments)
        except (OSError, ValueError) as error:
            return {"error": f"no answer: {getattr(error, 'strerror', None) or error}"}

    answers = await asyncio.gather(*map(one, member.others.values()))
    return dict(zip(member.others, answers, strict=True))


async def reload_others(member: Member, outcome: Outcome) -> None:
    """Let the other processes read the configuration again, and add what they did to ``outcome``."""
    answers = await ask_others(member, "reload", {}, RELOAD_PATIENCE)
    for number, answer in answers.items():
        prefix = f"process {number}: "
        if "error" in answer:
            outcome.notes.append(f"{prefix}{answer['error']}")
            continue
        outcome.changes += [prefix + text for text in answer["changes"] if not text.startswith("namespace ")]
        outcome.notes += [prefix + text for text in answer["notes"] if text not in outcome.notes]
        outcome.restart += [text for text in answer["restart"] if text not in outcome.restart]
    if member.others and not any("error" in answer for answer in answers.values()):
        member.forget_others()


async def follow_users(users: LiveUsers) -> None:
    """Read the users file again whenever somebody else has changed it."""
    path = users.config.users_file
    seen = mark_of(path)
    while path is not None:
        await asyncio.sleep(LOOK_FOR_USERS)
        found = mark_of(path)
        if found != seen:
            seen = found
            try:
                users.reload()
            except ConfigError as error:
                log.error("users stay as they were: %s", error)


def member_commands(member: Member, served: Served, own: Mapping[str, Command]) -> dict[str, Command]:
    """Return the commands of one of several processes. ``own``: those for this process alone."""
    if member.number != FIRST:
        return dict(own)
    return dict(own) | _Asking(member, served, own).commands()


class _Asking:
    def __init__(self, member: Member, served: Served, own: Mapping[str, Command]) -> None:
        self._member = member
        self._served = served
        self._own = own

    def commands(self) -> dict[str, Command]:
        return {
            "status": self._status,
            "metrics": self._metrics,
            "users": self._users,
            "reload_users": self._reload_users,
            "log-level": self._to_all("log-level"),
            "log-reopen": self._to_all("log-reopen"),
            "session-list": self._list("session-list", "sessions"),
            "file-list": self._list("file-list", "files"),
            "share-list": self._list("share-list", "shares"),
            "session-close": self._close("session-close", "session-list", "sessions"),
            "file-close": self._close("file-close", "file-list", "files"),
            "share-add": self._share_add,
            "share-set": self._to_owner("share-set"),
            "share-remove": self._to_owner("share-remove"),
        }

    async def _ask_self(self, name: str, request: Json) -> Any:
        """Return the answer of this process."""
        served = self._own[name](request)
        if isinstance(served, AsyncIterator):
            # The last one is the answer, those before it report progress.
            return [answer async for answer in served][-1]
        return await served if isinstance(served, Awaitable) else served

    async def _status(self, request: Json) -> Report:
        mine, others = await asyncio.gather(
            self._ask_self("status", request), ask_others(self._member, "status", request)
        )
        reports: dict[int, Report | str] = {FIRST: mine}
        for number, answer in others.items():
            if "error" in answer:
                reports[number] = str(answer["error"])
            else:
                reports[number] = msgspec.convert(answer, Report)
        led = {entry.name.casefold(): entry.process for entry in self._member.owned()}
        return merge_reports(reports, self._member.addresses, led)

    async def _metrics(self, request: Json) -> Json:
        texts = {FIRST: (await self._ask_self("metrics", request))["text"]}
        for number, answer in (await ask_others(self._member, "metrics", request)).items():
            if "error" in answer:
                log.warning("metrics of process %d: %s", number, answer["error"])
            else:
                texts[number] = answer["text"]
        return {"text": merge_metrics(texts)}

    async def _users(self, request: Json) -> Json:
        found: Json = await self._ask_self("users", request)
        sessions = {user["name"]: user for user in found["users"]}
        for answer in (await ask_others(self._member, "users", request)).values():
            for user in answer.get("users", ()):
                if user["name"] in sessions:
                    sessions[user["name"]]["sessions"] += user["sessions"]
        return found

    async def _reload_users(self, request: Json) -> Json:
        found: Json = await self._ask_self("reload_users", request)
        for number, answer in (await ask_others(self._member, "reload_users", request)).items():
            if "error" in answer:
                found.setdefault("error", f"process {number}: {answer['error']}")
            elif "sessions_ended" in found:
                found["sessions_ended"] += answer.get("sessions_ended", 0)
        return found

    def _to_all(self, name: str) -> Command:
        """Return the command that all processes do: the answer is that of this one."""

        async def command(request: Json) -> Answer:
            found: Answer = await self._ask_self(name, request)
            _check(await ask_others(self._member, name, request))
            return found

        return command

    def _list(self, name: str, key: str) -> Command:
        """Return the command that lists what all processes have. Each entry says in which ``process`` it is."""

        async def command(request: Json) -> Answer:
            return {key: await self._listed(name, key, request)}

        return command

    def _close(self, name: str, list_name: str, key: str) -> Command:
        """Return the command that ends what it names, in whichever process that is."""

        async def command(request: Json) -> Answer:
            ids = request.get("ids", [])
            known = {entry["id"]: entry for entry in await self._listed(list_name, key, {"command": list_name})}
            chosen: dict[int, list[str]] = {}
            for given in ids if isinstance(ids, list) else ():
                entry = choose(key[:-1], known, str(given))
                chosen.setdefault(entry["process"], []).append(entry["id"])
            everywhere = bool(request.get("user") or request.get("share"))
            answers = []
            if FIRST in chosen or everywhere or not ids:
                answers.append(await self._ask_self(name, request | {"ids": chosen.get(FIRST, [])}))
            for number, path in self._member.others.items():
                if number in chosen or everywhere:
                    wanted = {**request, "ids": chosen.get(number, [])}
                    del wanted["command"]
                    answers.append(await _told(path, name, wanted))
            waiting = sum(answer.get("waiting_files_closed", 0) for answer in answers)
            closed = [entry for answer in answers for entry in answer["closed"]]
            return {"closed": closed, **({"waiting_files_closed": waiting} if name == "session-close" else {})}

        return command

    async def _listed(self, name: str, key: str, request: Json) -> list[Json]:
        """Return the entries of all processes."""
        answers = {FIRST: await self._ask_self(name, request), **await ask_others(self._member, name, request)}
        return [entry | {"process": number} for number, answer in answers.items() for entry in answer.get(key, ())]

    # Shares of run time

    async def _share_add(self, request: Json) -> Answer:
        name, path, options = request.get("name"), request.get("path"), request.get("options", {})
        if not isinstance(name, str) or not isinstance(path, str) or not isinstance(options, dict):
            raise RefusedError("name and path: texts are needed")
        if request.get("temporary"):
            raise RefusedError("with several processes, shares of run time are kept: leave out --temporary")
        if self._served.shares.find(name) is not None:
            raise RefusedError(f"share {name}: there is one of this name")
        wish = options.get("process", 0)
        if not isinstance(wish, int) or not 0 <= wish <= len(self._member.addresses):
            raise RefusedError(f"process: there are {len(self._member.addresses)} processes")
        try:
            entry = self._member.take(name, os.path.realpath(path), wish)
        except ConfigError as error:
            raise RefusedError(str(error)) from error
        try:
            if entry.process == FIRST:
                answer: Json = await self._ask_self("share-add", request)
                return answer
            answer = await self._tell_owner(entry.process, "share-add", request)
        except RefusedError:
            self._member.give_up(name)
            raise
        self._served.namespaces.serve([self._member.lead(entry)])
        return answer

    def _to_owner(self, name: str) -> Command:
        """Return the command for a share that the process does which serves it."""

        async def command(request: Json) -> Answer:
            share = str(request.get("name", ""))
            entry = next((one for one in self._member.owned() if one.name.casefold() == share.casefold()), None)
            if entry is None or entry.process == FIRST:
                answer = await self._ask_self(name, request)
            else:
                answer = await self._tell_owner(entry.process, name, request)
            if name == "share-remove" and entry is not None and entry.lasting:
                self._member.give_up(share)
                if entry.process != FIRST:
                    self._served.namespaces.drop(share)
            found: Answer = answer
            return found

        return command

    async def _tell_owner(self, number: int, name: str, request: Json) -> Json:
        arguments = {key: value for key, value in request.items() if key != "command"}
        return await _told(self._member.others[number], name, arguments)


async def _told(path: Path, name: str, arguments: Json) -> Json:
    """Return the answer of a process that has to act. Raises ``RefusedError``."""
    try:
        answer = await asyncio.to_thread(ask, path, name, **arguments)
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if "error" in answer:
        raise RefusedError(str(answer["error"]))
    return answer


def _check(answers: Mapping[int, Json]) -> None:
    failed = [f"process {number}: {answer['error']}" for number, answer in answers.items() if "error" in answer]
    if failed:
        raise RefusedError("\n".join(failed))

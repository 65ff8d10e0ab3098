"""Everything that can be said about a configuration without starting a server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from smb3server.config import effective, service_user
from smb3server.config.advice import advise
from smb3server.config.checks import check_folder
from smb3server.config.command_line.arguments import read_options
from smb3server.config.command_line.options import ServerOptions
from smb3server.config.error import ConfigError, Problem, Problems
from smb3server.config.model import Config
from smb3server.config.schema import Document
from smb3server.config.service_user import lacks_rights
from smb3server.config.sources import stored_shares
from smb3server.config.sources.passwords import read_text


@dataclass(slots=True)
class Examination:
    """What was found."""

    document: Document | None = None
    """None if the file could not be read at all."""
    config: Config | None = None
    """None if there are mistakes."""
    as_user: str = ""
    """Name of the user whose rights were judged. Empty means those of this process."""
    problems: list[Problem] = field(default_factory=list)
    """With any of these the server does not start."""
    warnings: list[Problem] = field(default_factory=list)

    run_time: dict[str, str] = field(default_factory=dict)
    """The directories of the shares that were added at run time."""

    def values(self, everything: bool) -> str:
        """Return the values in effect as TOML. ``everything``: with the defaults."""
        if self.document is None:
            return ""
        stored = [f"# share {name}: {path}, added at run time\n" for name, path in self.run_time.items()]
        return "".join([effective.as_toml(self.document, everything), *stored])

    def as_json(self) -> str:
        """Return all of it as JSON."""
        values = effective.as_data(self.document) if self.document is not None else None
        found = {
            "ok": not self.problems,
            "as_user": self.as_user or None,
            "problems": list(map(_as_data, self.problems)),
            "warnings": list(map(_as_data, self.warnings)),
            "values": values,
            "run_time_shares": self.run_time,
        }
        return json.dumps(found, indent=2, ensure_ascii=False)


def _as_data(problem: Problem) -> dict[str, object]:
    place = problem.place
    return {
        "file": place.file or None,
        "line": place.line or None,
        "column": place.column or None,
        "option": place.option or None,
        "setting": problem.setting or None,
        "text": problem.text,
    }


def examine(options: ServerOptions, as_user: str = "") -> Examination:
    """Read and check the configuration that a command line means, as the user whom the server runs as.

    ``as_user`` names this user. Empty: for root the owner of the state directory, else of the users file.
    """
    found = Examination()
    problems = Problems(lacks_rights())
    try:
        command_line = read_options(options)
        found.as_user = as_user or service_user.find(command_line.document(Problems()))
        with service_user.judging_as(found.as_user):
            found.document = command_line.document(problems)
            config = command_line.build(found.document, problems)
            for path in config.secret_files:
                with problems.of(str(path), ""):
                    read_text(path)
            problems.finish()
            found.config = config
            found.warnings = advise(config, problems)
            _look_at_run_time(config, found)
    except ConfigError as error:
        found.problems = list(error.problems)
    return found


def _look_at_run_time(config: Config, found: Examination) -> None:
    """Add the shares that were added at run time, and warn of those that cannot be served. Raises ``ConfigError``."""
    if config.state is None:
        return
    path = config.state / stored_shares.FILE_NAME
    given = {share.name.casefold() for share in config.shares}
    for key, table in stored_shares.read(path).tables.items():
        where = f"share {table['name']}"
        try:
            share = stored_shares.share_of(where, table, config)
        except ConfigError as error:
            found.warnings += [entry._replace(text=f"{entry.text}: not served") for entry in error.problems]
            continue
        try:
            check_folder(share.path, share.require_mount)
        except ConfigError as error:
            found.warnings.append(Problem(f"{error}: not served", f"{where}: path"))
        found.run_time[share.name] = str(share.path)
        if key in given:
            found.warnings.append(Problem("added at run time, too: the configuration decides about it", where))

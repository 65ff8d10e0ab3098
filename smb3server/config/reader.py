"""The configuration file: from its text to what it declares."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from smb3server.config import schema
from smb3server.config.build import build, build_cluster, build_share
from smb3server.config.checks import FolderDownError, check_folder, find
from smb3server.config.error import ConfigError, Place, Problem, Problems
from smb3server.config.model import Config, ShareConfig
from smb3server.config.positions import Positions
from smb3server.config.schema import Cluster, Document, Share
from smb3server.config.sections import SectionReader
from smb3server.dfs.namespace import Link
from smb3server.settings.cluster import ClusterConfig

_SYNTAX_ERROR = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


def read_document(path: Path, problems: Problems) -> Document:
    """Read the sections of a file, and note every mistake in ``problems``. Raises ``ConfigError`` if it is no TOML."""
    values, reader = _open(path, problems)
    return reader.document(values)


def read_file(path: Path) -> Config:
    """Read a file alone, without the command line. Raises ``ConfigError`` with all mistakes."""
    problems = Problems()
    config = build(read_document(path, problems), problems)
    find(config, problems)
    problems.finish()
    return config


def read_values(path: Path) -> dict[str, object]:
    """Read a TOML file without checking what it says. Raises ``ConfigError``."""
    return _open(path, Problems())[0]


def read_share(source: str, values: Mapping[str, object], config: Config) -> ShareConfig:
    """Read one share that does not stand in the file, with the groups of ``config``. ``source`` names its origin.

    Raises ``ConfigError`` with all mistakes.
    """
    problems = Problems()
    section = SectionReader(Path(source), None, problems).section(Share, values, ("share", 0))
    problems.finish()
    if section is None:
        raise ConfigError(f"{source}: not a share")
    share = build_share(section, config, problems)
    # It may be there later.
    with problems.of(f"share {share.name}", "path"), contextlib.suppress(FolderDownError):
        check_folder(share.path, share.require_mount)
    problems.finish()
    return share


def read_link(source: str, values: Mapping[str, object]) -> Link:
    """Read one link that does not stand in the file. ``source`` names its origin. Raises ``ConfigError``."""
    problems = Problems()
    section = SectionReader(Path(source), None, problems).section(schema.Link, values, ("link", 0))
    problems.finish()
    if section is None:
        raise ConfigError(f"{source}: not a link")
    try:
        return Link.make(section.path, section.targets, section.comment, section.ttl, section.failback)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_cluster(path: Path) -> ClusterConfig:
    """Read the cluster that a node's file describes.

    The rest of the file is ignored: its shares and users are those of another machine. Raises ``ConfigError``.
    """
    problems = Problems()
    values, reader = _open(path, problems)
    cluster = reader.section(Cluster, values.get("cluster", {}), ("cluster",))
    problems.finish()
    return build_cluster(cluster or Cluster())


def _open(path: Path, problems: Problems) -> tuple[dict[str, object], SectionReader]:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        return values, SectionReader(path, Positions(text), problems)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(Problem("not UTF-8", place=Place(str(path), line, 1))) from error
    except RecursionError:
        raise ConfigError(f"{path}: values are nested too deeply") from None
    except ValueError as error:
        # TOMLDecodeError, or an integer that is longer than Python reads.
        raise ConfigError(_syntax_error(path, str(error))) from error


def _syntax_error(path: Path, said: str) -> Problem:
    found = _SYNTAX_ERROR.fullmatch(said)
    if found is None:
        return Problem(f"{path}: {said}")
    text, line, column = found.groups()
    if line is None:
        lines = path.read_text(encoding="utf-8").splitlines()
        line, column = len(lines) or 1, len(lines[-1]) + 1 if lines else 1
    return Problem(f"not TOML: {text}", place=Place(str(path), int(line), int(column)))

"""The numbers that users of trusted domains have on this host."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.access.descriptor import Sid
from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.model import Config

CONFIG = """
[server]
state = "{folder}/state"
[domain]
realm = "contoso.com"
{settings}
[[share]]
name = "data"
path = "{folder}/data"
"""


def parsed(folder: Path, settings: str) -> Config:
    (folder / "data").mkdir()
    file = folder / "server.toml"
    file.write_text(CONFIG.format(folder=folder, settings=settings))
    return parse_arguments(["--config", str(file)])


@pytest.mark.parametrize(
    ("line", "names"),
    [('central_policies = ["Finance"]', ("Finance",)), ("central_policies = []", ()), ("", None)],
)
def test_central_access_policies_are_chosen_by_name(tmp_path: Path, line: str, names: tuple[str, ...] | None) -> None:
    domain = parsed(tmp_path, line).domain
    assert domain is not None and domain.central_policies == names


def test_ranges_are_those_of_the_domains(tmp_path: Path) -> None:
    domain = parsed(tmp_path, 'trusted_ranges = ["S-1-5-21-7-8-9 1000000-1099999"]').domain
    assert domain is not None and domain.trusted_ranges == {Sid.parse("S-1-5-21-7-8-9"): (1_000_000, 1_099_999)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ('trusted_ranges = ["OTHER 1000000-1099999"]', "is not written as"),
        ('trusted_ranges = ["S-1-5-32-544 1000000-1099999"]', "is not written as"),
        ('trusted_ranges = ["S-1-5-21-7-8-9 1000000"]', "is not written as"),
        ('trusted_ranges = ["S-1-5-21-7-8-9 1099999-1000000"]', "a greater last number"),
        ('trusted_ranges = ["S-1-5-21-7-8-9 0-5"]', "a greater last number"),
        ('trusted_ranges = ["S-1-5-21-7-8-9 999999-1099999"]', "same numbers"),
        ('trusted_ranges = ["S-1-5-21-7-8-9 1-5", "S-1-5-21-7-8-8 5-9"]', "same numbers"),
        ('idmap = "autorid"\ntrusted_ranges = ["S-1-5-21-7-8-9 1000000-1099999"]', "is for rid"),
    ],
)
def test_wrong_ranges_are_refused(tmp_path: Path, settings: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parsed(tmp_path, settings)

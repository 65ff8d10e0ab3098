"""Which process serves which share, and what several processes need."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError
from smb3server.config.model import Config, ShareConfig
from smb3server.config.processes import Owned, addresses, assign


def share(name: str, path: Path, process: int = 0) -> ShareConfig:
    path.mkdir(parents=True, exist_ok=True)
    return ShareConfig(name, path, process=process)


def owners(found: list[Owned]) -> dict[str, int]:
    return {entry.name: entry.process for entry in found}


def test_shares_are_spread_and_those_on_one_folder_stay_together(tmp_path: Path) -> None:
    shares = [share(name, tmp_path / path) for name, path in (("a", "a"), ("b", "b"), ("ax", "a/x"), ("c", "c"))]
    (tmp_path / "link").symlink_to(tmp_path / "b")
    shares.append(share("again", tmp_path / "link"))
    found = owners(assign(shares, None, 2, (), held=False))
    assert found["a"] == found["ax"] == 1
    assert found["b"] == found["again"] == 2
    assert found["c"] in (1, 2)


def test_a_share_above_two_others_brings_them_together(tmp_path: Path) -> None:
    shares = [share("a", tmp_path / "s" / "a"), share("b", tmp_path / "s" / "b"), share("s", tmp_path / "s")]
    assert set(owners(assign(shares, None, 2, (), held=False)).values()) == {1}


def test_wishes_that_contradict_are_refused(tmp_path: Path) -> None:
    shares = [share("a", tmp_path / "a", 1), share("b", tmp_path / "a" / "b", 2)]
    with pytest.raises(ConfigError, match="one process has to serve them"):
        assign(shares, None, 2, (), held=False)


def test_homes_are_those_of_process_1(tmp_path: Path) -> None:
    homes = ShareConfig("homes", tmp_path / "home" / "{user}")
    shares = [share("x", tmp_path / "x"), share("alice", tmp_path / "home" / "alice")]
    assert owners(assign(shares, homes, 2, (), held=False))["alice"] == 1
    with pytest.raises(ConfigError):
        assign([share("bob", tmp_path / "home" / "bob", 2)], homes, 2, (), held=False)


def test_running_processes_keep_what_they_have(tmp_path: Path) -> None:
    before = assign([share("a", tmp_path / "a"), share("b", tmp_path / "b")], None, 2, (), held=False)
    moved = [share("b", tmp_path / "b", 1)]
    assert owners(assign(moved, None, 2, before, held=True))["b"] == 2
    # What a process may serve still, because it has not heard of the removal, is nobody else's.
    with pytest.raises(ConfigError, match="restart"):
        assign([share("again", tmp_path / "b", 1)], None, 2, before, held=True)
    assert owners(assign([share("again", tmp_path / "b")], None, 2, before, held=True))["again"] == 2
    assert owners(assign(moved, None, 2, before, held=False)) == {"b": 1}


def test_shares_of_run_time_come_back_from_processes_that_are_gone(tmp_path: Path) -> None:
    before = [Owned("a", str(tmp_path), str(tmp_path), 3, True)]
    assert owners(assign([], None, 2, before, held=False)) == {"a": 1}


def test_addresses_by_name_are_as_many_as_processes() -> None:
    config = Config(processes=2, process_addresses=["192.0.2.1", "192.0.2.2"])
    assert addresses(config) == ["192.0.2.1", "192.0.2.2"]
    config.process_addresses = []
    config.listen = ["192.0.2.1"]
    with pytest.raises(ConfigError, match="2 processes need 2 addresses"):
        addresses(config)
    config.listen = ["192.0.2.1", "0.0.0.0"]
    with pytest.raises(ConfigError, match="no address of one process"):
        addresses(config)


def test_the_machine_has_too_few_addresses() -> None:
    with pytest.raises(ConfigError, match=r"64 processes need 64 addresses.*this machine has"):
        addresses(Config(processes=64))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("port = 0", "one port"),
        ('listen = ["192.0.2.9", "192.0.2.10"]', "excludes process_addresses"),
        ("[witness]", "cannot be combined"),
        ('[[share]]\nname = "x"\npath = "/"\nprocess = 3', "there are 2 processes"),
    ],
)
def test_what_several_processes_cannot_have(tmp_path: Path, more: str, why: str) -> None:
    file = tmp_path / "c.toml"
    (tmp_path / "a").mkdir()
    file.write_text(
        f'[server]\nprocesses = 2\nprocess_addresses = ["192.0.2.1", "192.0.2.2"]\nstate = "{tmp_path / "state"}"\n'
        f'{more}\n[[share]]\nname = "a"\npath = "{tmp_path / "a"}"\nguest = true\n'
    )
    with pytest.raises(ConfigError, match=why):
        parse_arguments(["--config", str(file)])

"""The options for the web page and for discovery."""

from __future__ import annotations

from pathlib import Path

import pytest

from smb3server.config.command_line.arguments import parse_arguments
from smb3server.config.error import ConfigError


def test_without_options_there_is_neither(tmp_path: Path) -> None:
    config = parse_arguments(["--share", f"data={tmp_path}", "--user", "alice:pw"])
    assert config.web is None
    assert config.discovery is None


@pytest.mark.parametrize(
    ("option", "listen", "port"),
    [
        ("--web", "127.0.0.1", 8445),
        ("--web=127.0.0.2:9000", "127.0.0.2", 9000),
        ("--web=[::1]:0", "::1", 0),
    ],
)
def test_a_page_and_its_administrators(tmp_path: Path, option: str, listen: str, port: int) -> None:
    arguments = ["--share", f"data={tmp_path}", "--user", "alice:pw", "--admin", "alice", "--discover", option]
    config = parse_arguments(arguments)
    assert config.web is not None
    assert (config.web.listen, config.web.port) == (listen, port)
    assert config.settings.admins == {"alice"}
    assert config.discovery is not None
    assert config.discovery.mdns
    assert config.discovery.ws_discovery


def test_an_option_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "smb.toml"
    file.write_text('[server]\nadmins = ["alice"]\n[web]\nport = 9000\nnames = ["nas"]\n[discovery]\nmdns = false\n')
    arguments = ["--config", str(file), "--share", f"data={tmp_path}", "--user", "alice:pw"]
    config = parse_arguments([*arguments, "--web", "--discover"])
    assert config.web is not None
    assert (config.web.port, config.web.names) == (8445, ("nas",))
    assert config.discovery is not None
    assert not config.discovery.mdns


@pytest.mark.parametrize("text", ["8445", "localhost:", "127.0.0.1:70000", "x:y"])
def test_another_form_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"--web .*: write ADDR:PORT, such as"):
        parse_arguments(["--share", f"data={tmp_path}", "--user", "alice:pw", f"--web={text}"])

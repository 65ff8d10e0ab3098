"""What is written from the schema: tables, examples, the JSON schema, the values in effect."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from smb3server.config import documents, effective
from smb3server.config.error import Problems
from smb3server.config.reader import read_document, read_file
from smb3server.config.schema import Document
from smb3server.config.sections import Key, keys_of
from tools import configuration


def all_keys() -> Iterator[tuple[str, Key]]:
    for title, section in documents.sections().items():
        yield from ((title, key) for key in keys_of(section).values())


def test_the_pages_have_what_the_schema_says() -> None:
    """If this fails: ``python -m tools.configuration``."""
    pages = [page.read_text() for page in configuration.PAGES]
    for page in pages:
        assert configuration.generated(page) == page
    for name in ("effects of the server", "effects of a share"):
        assert f"<!-- {name}: written by" in pages[1]
    page = pages[0]
    for title in documents.sections():
        assert f"<!-- {title}: written by" in page
    assert "<!-- example: written by" in page


@pytest.mark.parametrize(("title", "key"), list(all_keys()), ids=lambda value: getattr(value, "name", value))
def test_keys_are_explained(title: str, key: Key) -> None:
    assert key.description and not key.description.endswith("."), title
    if key.default is None or key.default == []:
        assert key.unset or key.needed or key.example == [], "the table must say what it means not to give it"


def test_the_full_example_has_every_key() -> None:
    values = tomllib.loads(documents.everything())
    for key in keys_of(Document).values():
        if key.section is None:
            assert values[key.name]
            continue
        given: Any = values[key.name]
        tables = given if isinstance(given, list) else [given]
        assert set().union(*tables) == set(keys_of(key.section)), key.name


@pytest.mark.parametrize("full", [False, True])
def test_the_commented_example_is_taken_as_it_is(tmp_path: Path, full: bool) -> None:
    file = tmp_path / "smb.toml"
    file.write_text(documents.example(full))
    assert read_file(file).shares == []
    assert all(line.startswith("#") or not line for line in file.read_text().splitlines())
    assert max(map(len, file.read_text().splitlines())) <= 100


def test_without_its_number_signs_the_example_is_a_configuration(tmp_path: Path) -> None:
    """Only paths and users of the host may be wrong."""
    for full in (False, True):
        file = tmp_path / "smb.toml"
        file.write_text(re.sub(r"(?m)^#(?! )", "", documents.example(full)))
        problems = Problems()
        document = read_document(file, problems)
        assert problems.found == []
        assert document.share[0].name == "data" and document.user[0].name == "alice"
    assert tomllib.loads(file.read_text()) == tomllib.loads(documents.everything())


def test_the_json_schema() -> None:
    schema = json.loads(json.dumps(documents.json_schema()))
    sections = schema["$defs"]
    server, share = sections["Server"]["properties"], sections["Share"]
    assert (server["port"]["minimum"], server["port"]["maximum"]) == (0, 65535)
    assert server["log_level"]["enum"] == ["debug", "error", "info", "warning"]
    assert server["name"]["pattern"] and "NetBIOS" in server["name"]["description"]
    assert share["required"] == ["name", "path"] and share["additionalProperties"] is False
    assert "null" not in json.dumps(schema)
    for title, section in documents.sections().items():
        assert set(sections[section.__name__]["properties"]) == set(keys_of(section)), title


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    """The declaration as msgspec reads it, which editors have as JSON schema."""
    msgspec.convert(tomllib.loads(documents.everything()), Document)
    for wrong in ({"sever": {}}, {"server": {"prot": 1}}, {"server": {"port": 70000}}, {"share": [{"name": "x"}]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Document)


def test_values_in_effect_can_be_read_again(tmp_path: Path) -> None:
    file = tmp_path / "smb.toml"
    file.write_text(documents.everything())
    document = read_document(file, Problems())
    for everything in (False, True):
        text = effective.as_toml(document, everything)
        again = tmp_path / "again.toml"
        again.write_text(text)
        read = read_document(again, Problems())
        for user in document.user:
            user.password = user.nt_hash = None
        assert read == document
    assert "correct horse" not in text and "878d8014606cda29677a44efa1353fc7" not in text
    assert "idle_session_timeout = 600.0" in text
    shown = effective.as_data(Document())
    assert shown["server"]["port"] is None and shown["limits"]["max_credits"] == 8192 and shown["web"] is None
    assert effective.as_toml(Document(), False) == ""

"""config.example.toml: it loads, and its keys, defaults and comments match the settings models."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from gateway.agents.configured_agents import Agents
from gateway.config import AgentSettings, Settings, load, parse

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"
KEY = re.compile(r"^(#\s*)?(\[[\w.]+\]|\w+ = )")


def uncommented() -> dict[str, Any]:
    """Return the file with the keys of commented-out lines included."""
    lines = EXAMPLE.read_text().splitlines()
    return tomllib.loads("\n".join(line.lstrip("# ") if KEY.match(line) else line for line in lines))


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        elif name == "agents":
            yield from keys(AgentSettings, "agents.reviewer.")
        else:
            yield prefix + name


def flat(table: dict[str, Any], known: set[str], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        path = prefix + name
        found |= flat(value, known, f"{path}.") if isinstance(value, dict) and path not in known else {path: value}
    return found


def test_example_equals_the_default_settings() -> None:
    assert load(EXAMPLE, {}) == Settings()


def test_example_with_all_keys_is_valid(tmp_path: Path) -> None:
    settings = parse(uncommented())
    assert settings.agents.keys() == {"reviewer", "demo"}
    assert Agents(settings, {}, tmp_path).get("demo").info.title == "Script"


def test_example_has_exactly_the_known_keys() -> None:
    known = set(keys(Settings))
    present = flat(uncommented(), known)
    assert {name for name in present if not name.startswith("agents.demo.")} == known
    assert len(known) >= 20


def test_values_that_are_not_commented_out_are_the_defaults() -> None:
    known = set(keys(Settings))
    given = flat(tomllib.loads(EXAMPLE.read_text()), known)
    defaults = flat(Settings().model_dump(mode="json"), known)
    assert {name: type(value)(defaults[name]) for name, value in given.items()} == given
    left_out = {name for name in known - given.keys() if not name.startswith("agents.")}
    assert left_out == {"server.data_dir"}, "its default depends on the platform"


@pytest.mark.parametrize("name", sorted(set(keys(Settings))))
def test_every_key_has_a_comment(name: str) -> None:
    lines = EXAMPLE.read_text().splitlines()
    key = name.rsplit(".", 1)[-1]
    (at, *_) = [n for n, line in enumerate(lines) if re.match(rf"^(# )?{key} = ", line)]
    before = lines[at - 1]
    assert before.startswith("# ")
    assert not KEY.match(before) or key == "description", f"{name} has no comment"

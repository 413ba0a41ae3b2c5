"""Reads what the claude CLI reports of itself: whether it is logged in, its models and its slash commands. No state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drivers.claude.session_metadata import commands_of
from drivers.contract.driver_info import ModelName
from drivers.contract.events import SlashCommand
from drivers.contract.line_splitter import parse_object


def login_status(printed: str) -> bool | None:
    """Of what `claude auth status` has printed: the member `loggedIn` of a JSON object; None without it."""
    status = parse_object(printed.encode())
    reported = status.get("loggedIn") if status is not None else None
    return reported if isinstance(reported, bool) else None


def greeting(lines: Iterable[str]) -> Mapping[str, Any]:
    """The answer to `initialize`; empty if there is none."""
    for line in lines:
        answer = parse_object(line.encode())
        if answer is None or answer.get("type") != "control_response":
            continue
        outer = answer.get("response")
        inner = outer.get("response") if isinstance(outer, dict) else None
        return inner if isinstance(inner, dict) else {}
    return {}


def models(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The values that `--model` takes."""
    listed = answer.get("models")
    if not isinstance(listed, list):
        return ()
    return tuple(str(model["value"]) for model in listed if isinstance(model, dict) and model.get("value"))


def model_names(answer: Mapping[str, Any]) -> tuple[ModelName, ...]:
    """The names and descriptions of the models."""
    listed = [model for model in answer.get("models") or () if isinstance(model, dict) and model.get("value")]
    return tuple(
        ModelName(str(model["value"]), str(model["displayName"]), str(model.get("description") or ""))
        for model in listed
        if model.get("displayName")
    )


def efforts(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The levels of effort that any of the models has."""
    listed = [model for model in answer.get("models") or () if isinstance(model, dict)]
    levels = [level for model in listed for level in model.get("supportedEffortLevels") or ()]
    return tuple(dict.fromkeys(map(str, levels)))


def fast_models(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that have a fast mode."""
    listed = [model for model in answer.get("models") or () if isinstance(model, dict) and model.get("value")]
    return tuple(str(model["value"]) for model in listed if model.get("supportsFastMode"))


def commands(answer: Mapping[str, Any]) -> tuple[SlashCommand, ...]:
    """The slash commands that it has without any settings."""
    listed = answer.get("commands")
    return commands_of(listed) if isinstance(listed, list) else ()

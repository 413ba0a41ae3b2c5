"""The client of AAP and of `POST /v1/execute` for the tests of codex, and what its model receives."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.real import aap_client
from tests.real.real_cli import WEATHER

__all__ = ["WEATHER", "create_session", "execute", "message_texts", "outputs"]

create_session = partial(aap_client.create_session, agent="codex")
execute = partial(aap_client.execute, driver="codex")


def message_texts(body: dict[str, Any], role: str = "user") -> list[str]:
    """The texts of one role in a model request, in order, without those that the CLI adds."""
    parts = [part for item in body["input"] if item.get("role") == role for part in item["content"]]
    return [part["text"] for part in parts if "text" in part and not part["text"].startswith("<environment_context>")]


def outputs(body: dict[str, Any]) -> list[Any]:
    """The tool outputs in a model request, in order."""
    return [item["output"] for item in body["input"] if item.get("type", "").endswith("call_output")]

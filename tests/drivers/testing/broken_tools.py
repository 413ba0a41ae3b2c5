"""Drivers with one fault in their tools each, derived from the script driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from drivers.codecs.output_event_lines import EventLineCodec
from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.codec import Launch
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent
from drivers.script.driver import TOOLS, ScriptDriver, greeting
from drivers.testing import ToolCases

CASES = ToolCases({"lookup": "call lookup", "shell": "call shell"}, application="call the application")
SCENARIO = {
    "turns": [
        {"when": "call lookup", "steps": [{"tool_call": {"name": "lookup"}}, {"text": "{last_result}"}]},
        {"when": "call shell", "steps": [{"tool_call": {"name": "shell"}}, {"text": "{last_result}"}]},
        {"when": "call the application", "steps": [{"app_tool": {"name": "portico_check"}}, {"text": "{last_result}"}]},
        {"steps": [{"text": "hello"}]},
    ]
}


def write_scenario(folder: Path) -> dict[str, str]:
    """Write a scenario whose turns call tools into the working folder of a check; return the options that play it."""
    (folder / "work").mkdir()
    (folder / "work" / "tools.json").write_text(json.dumps(SCENARIO))
    return {"scenario": "tools.json", "pace": "fast"}


class Grants(ScriptDriver):
    """Passes changed grants to its program."""

    def __init__(self, change: Callable[[tuple[ToolGrant, ...]], tuple[ToolGrant, ...]]) -> None:
        self._change = change

    def session(self, spec: SessionSpec) -> Launch:
        return super().session(replace(spec, tools=self._change(spec.tools)))


def all_trusted(grants: tuple[ToolGrant, ...]) -> tuple[ToolGrant, ...]:
    return tuple(ToolGrant(tool.name, trust=True) for tool in TOOLS)


def listed_trusted(grants: tuple[ToolGrant, ...]) -> tuple[ToolGrant, ...]:
    return tuple(replace(grant, trust=True) for grant in grants)


def none_trusted(grants: tuple[ToolGrant, ...]) -> tuple[ToolGrant, ...]:
    return tuple(replace(grant, trust=False) for grant in grants)


def none_listed(grants: tuple[ToolGrant, ...]) -> tuple[ToolGrant, ...]:
    return ()


class Coded(ScriptDriver):
    """The script driver with another codec in its sessions."""

    def __init__(self, codec: type[EventLineCodec]) -> None:
        self._codec = codec

    def session(self, spec: SessionSpec) -> Launch:
        return replace(super().session(spec), codec=self._codec(greeting(spec)))


class GrantsAll(EventLineCodec):
    """Passes every reply on as a grant."""

    def reply(self, reply: Reply) -> None:
        super().reply(replace(reply, decision="allow") if isinstance(reply, PermissionReply) else reply)


class DeniesAll(EventLineCodec):
    """Passes every reply on as a denial."""

    def reply(self, reply: Reply) -> None:
        super().reply(replace(reply, decision="deny") if isinstance(reply, PermissionReply) else reply)


class LosesResults(EventLineCodec):
    """Passes an empty text on instead of a result."""

    def reply(self, reply: Reply) -> None:
        super().reply(replace(reply, content="") if isinstance(reply, ToolReply) else reply)


class AsksForResults(EventLineCodec):
    """Announces the call of an application-side tool as one that waits for permission."""

    def receive(self, line: bytes) -> list[OutputEvent]:
        return [_asking(event) if isinstance(event, Awaiting) else event for event in super().receive(line)]

    def reply(self, reply: Reply) -> None:
        super().reply(ToolReply(reply.call_id, "x"))


def _asking(event: Awaiting) -> Awaiting:
    return Awaiting(calls=tuple(AwaitedCall(id=call.id, wants="permission") for call in event.calls))

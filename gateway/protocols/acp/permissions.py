"""Permission: what a client is asked about a call, and what its answer means for the call and for the session; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from acp.schema import AllowedOutcome, PermissionOption, RequestPermissionResponse
from pydantic import ValidationError

from drivers.contract.agent import PermissionReply
from drivers.contract.info import ToolGrant
from gateway.sessions.settings import SessionSettings

Choice = Literal["allow_once", "allow_always", "reject_once", "reject_always", "cancelled"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The client's word on one call of a tool."""

    call_id: str
    tool: str
    choice: Choice

    @property
    def reply(self) -> PermissionReply:
        return PermissionReply(self.call_id, granted=self.choice.startswith("allow"))


def options(tool: str, *, enabled: bool) -> list[PermissionOption]:
    """The answers; each one's id is its kind. A tool that the session does not list itself cannot be taken off its list."""
    names: dict[Any, str] = {
        "allow_once": "Allow",
        "allow_always": f"Always allow {tool} in this session",
        "reject_once": "Reject",
        "reject_always": f"Never allow {tool} in this session",
    }
    return [
        PermissionOption(option_id=kind, name=name, kind=kind)
        for kind, name in names.items()
        if enabled or kind != "reject_always"
    ]


def choice_of(result: Mapping[str, Any]) -> Choice:
    """What a client has chosen; anything that it was not offered is a refusal."""
    try:
        outcome = RequestPermissionResponse.model_validate(result).outcome
    except ValidationError:
        return "reject_once"
    if not isinstance(outcome, AllowedOutcome):
        return "cancelled"
    kinds: dict[str, Choice] = {kind: kind for kind in ("allow_once", "allow_always", "reject_once", "reject_always")}
    return kinds.get(outcome.option_id, "reject_once")


def remembered(config: SessionSettings, decisions: list[Decision]) -> SessionSettings:
    """The session's settings with every "always": a tool that is trusted, or one that is not enabled any more."""
    grants = {grant.name: grant for grant in config.tools or ()}
    for decision in decisions:
        if decision.choice == "allow_always":
            grants[decision.tool] = ToolGrant(decision.tool, trust=True)
        elif decision.choice == "reject_always":
            grants.pop(decision.tool, None)
    tools = tuple(grants.values())
    return config if tools == (config.tools or ()) else replace(config, tools=tools)

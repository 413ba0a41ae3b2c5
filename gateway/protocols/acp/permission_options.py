"""The options of a permission request, and what the client's choice means for the call and for the session. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/tool-calls#requesting-permission
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from acp.schema import AllowedOutcome, PermissionOption, RequestPermissionResponse
from pydantic import ValidationError

from drivers.contract.agent import PermissionReply
from drivers.contract.driver_info import ToolGrant
from gateway.sessions.settings import SessionSettings

Choice = Literal["allow_once", "allow_always", "reject_once", "reject_always", "cancelled"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The client's choice about one tool call."""

    call_id: str
    tool: str
    choice: Choice

    @property
    def reply(self) -> PermissionReply:
        return PermissionReply(self.call_id, granted=self.choice.startswith("allow"))


def options(tool: str, *, enabled: bool) -> list[PermissionOption]:
    """Return the options, each with its kind as its id.

    `enabled` is whether the session's list has the tool; only then can `reject_always` remove it.
    """
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
    """Return the choice of the client's result. An unknown option, or an invalid result, is a rejection."""
    try:
        outcome = RequestPermissionResponse.model_validate(result).outcome
    except ValidationError:
        return "reject_once"
    if not isinstance(outcome, AllowedOutcome):
        return "cancelled"
    kinds: dict[str, Choice] = {kind: kind for kind in ("allow_once", "allow_always", "reject_once", "reject_always")}
    return kinds.get(outcome.option_id, "reject_once")


def with_decisions(config: SessionSettings, decisions: list[Decision]) -> SessionSettings:
    """Return the settings after the decisions: `allow_always` trusts a tool, `reject_always` disables it."""
    grants = {grant.name: grant for grant in config.tools or ()}
    for decision in decisions:
        if decision.choice == "allow_always":
            grants[decision.tool] = ToolGrant(decision.tool, trust=True)
        elif decision.choice == "reject_always":
            grants.pop(decision.tool, None)
    tools = tuple(grants.values())
    return config if tools == (config.tools or ()) else replace(config, tools=tools)

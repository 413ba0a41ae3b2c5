"""The options of a permission request, and what the client's choice means for the call and for the session. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/tool-calls#requesting-permission
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from acp.schema import AllowedOutcome, PermissionOption, RequestPermissionResponse
from pydantic import ValidationError

from drivers.contract.agent import PermissionReply, Reply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import PermissionChoice
from gateway.sessions.settings import SessionSettings

Choice = Literal["allow_once", "allow_always", "reject_once", "reject_always", "cancelled"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The client's choice about one tool call: the kind of an option, and the id of the CLI's own choice if it is one.

    `answers` is the reply to a call that is a question to the user.
    """

    call_id: str
    tool: str
    choice: Choice
    own: str | None = None
    answers: Reply | None = None

    @property
    def reply(self) -> Reply:
        return self.answers or PermissionReply(self.call_id, granted=self.choice.startswith("allow"), choice=self.own)


def options(tool: str, *, enabled: bool, choices: Sequence[PermissionChoice] = ()) -> list[PermissionOption]:
    """Return the options, those of the gateway with their kinds as their ids.

    `choices` are the CLI's own, which come before those about the whole tool. `enabled` is whether the session's list has the
    tool; only then can `reject_always` remove it.
    """
    own = [PermissionOption(option_id=choice.id, name=choice.name, kind=choice.kind) for choice in choices]
    if any(option.kind.startswith("reject") for option in own):
        return own
    names: dict[Any, str] = {
        "allow_once": "Allow",
        "allow_always": f"Always allow {tool} in this session",
        "reject_once": "Reject",
        "reject_always": f"Never allow {tool} in this session",
    }
    general = [
        PermissionOption(option_id=kind, name=name, kind=kind)
        for kind, name in names.items()
        if enabled or kind != "reject_always"
    ]
    return [*general[:1], *own, *general[1:]]


def option_of(result: Mapping[str, Any]) -> str | None:
    """Return the id of the option in the client's result; empty for an invalid result, None where the client has cancelled."""
    try:
        outcome = RequestPermissionResponse.model_validate(result).outcome
    except ValidationError:
        return ""
    return outcome.option_id if isinstance(outcome, AllowedOutcome) else None


def decision_of(call_id: str, tool: str, result: Mapping[str, Any], choices: Sequence[PermissionChoice] = ()) -> Decision:
    """Return the decision of the client's result. An unknown option, or an invalid result, is a rejection."""
    option = option_of(result)
    if option is None:
        return Decision(call_id, tool, "cancelled")
    own = next((choice for choice in choices if choice.id == option), None)
    if own is not None:
        return Decision(call_id, tool, own.kind, own.id)
    if any(choice.kind.startswith("reject") for choice in choices):
        # There are no other options.
        return Decision(call_id, tool, "reject_once")
    kinds: dict[str, Choice] = {kind: kind for kind in ("allow_once", "allow_always", "reject_once", "reject_always")}
    return Decision(call_id, tool, kinds.get(option, "reject_once"))


def with_decisions(config: SessionSettings, decisions: list[Decision]) -> SessionSettings:
    """Return the settings after the decisions: `allow_always` trusts a tool, `reject_always` disables it.

    What a choice of the CLI's own means is the CLI's.
    """
    grants = {grant.name: grant for grant in config.tools or ()}
    for decision in decisions:
        if decision.own is not None or decision.answers is not None:
            continue
        if decision.choice == "allow_always":
            grants[decision.tool] = ToolGrant(decision.tool, trust=True)
        elif decision.choice == "reject_always":
            grants.pop(decision.tool, None)
    tools = tuple(grants.values())
    return config if tools == (config.tools or ()) else replace(config, tools=tools)

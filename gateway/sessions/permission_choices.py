"""The choices that a client has about a pending call, for every protocol: the CLI's own and those of the gateway. Pure.

The gateway's choices have their kinds as their ids. `allow_always` trusts the tool in this session, `reject_always` disables it.
What a choice of the CLI's own means is the CLI's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from drivers.contract.agent import PermissionReply
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import AwaitedCall, PermissionChoice
from gateway.sessions.settings import SessionSettings

Kind = Literal["allow_once", "allow_always", "reject_once", "reject_always"]


@dataclass(frozen=True, slots=True)
class ChosenAnswer:
    """A client's choice about one tool call: its kind, and the id of the CLI's own choice if it is one."""

    call_id: str
    tool: str
    kind: Kind
    own: str | None = None

    @property
    def granted(self) -> bool:
        return self.kind.startswith("allow")

    def reply(self, reason: str | None = None) -> PermissionReply:
        """Return the reply for the agent, with the client's reason for a rejection."""
        return PermissionReply(self.call_id, "allow" if self.granted else "deny", reason, self.own)


def choices_of(call: AwaitedCall, tool: str, settings: SessionSettings) -> list[PermissionChoice]:
    """Return all choices about a pending call of a tool; none for a call that does not wait for a permission.

    The CLI's own come before those about the whole tool. Where one of them is a rejection, there are no others.
    Only a tool in the session's list can be disabled.
    """
    if call.wants != "permission":
        return []
    own = list(call.choices)
    if any(choice.kind.startswith("reject") for choice in own):
        return own
    named = tool or "this tool"
    names: dict[Kind, str] = {
        "allow_once": "Allow",
        "allow_always": f"Always allow {named} in this session",
        "reject_once": "Reject",
        "reject_always": f"Never allow {named} in this session",
    }
    if all(grant.name != tool for grant in settings.tools or ()):
        del names["reject_always"]
    taken = {choice.id for choice in own}
    general = [PermissionChoice(id=kind, name=name, kind=kind) for kind, name in names.items() if kind not in taken]
    return [*general[:1], *own, *general[1:]]


def chosen(call: AwaitedCall, tool: str, settings: SessionSettings, choice: str) -> ChosenAnswer | None:
    """Return what a choice is by its id; None if the call has no such choice."""
    found = next((one for one in choices_of(call, tool, settings) if one.id == choice), None)
    if found is None:
        return None
    own = found.id if found in call.choices else None
    return ChosenAnswer(call.id, tool, found.kind, own)


def with_choices(settings: SessionSettings, answers: Iterable[ChosenAnswer]) -> SessionSettings:
    """Return the settings after the client's choices: tools that are trusted or disabled from now on."""
    grants = {grant.name: grant for grant in settings.tools or ()}
    for answer in answers:
        if answer.own is not None:
            continue
        if answer.kind == "allow_always":
            grants[answer.tool] = ToolGrant(answer.tool, trust=True)
        elif answer.kind == "reject_always":
            grants.pop(answer.tool, None)
    tools: Sequence[ToolGrant] = tuple(grants.values())
    return settings if tools == (settings.tools or ()) else replace(settings, tools=tuple(tools))

"""The choices about a pending call as the options of a permission request, and the client's choice. Does no I/O.

Protocol page: https://agentclientprotocol.com/protocol/tool-calls#requesting-permission
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from acp.schema import AllowedOutcome, PermissionOption, RequestPermissionResponse
from pydantic import ValidationError

from drivers.contract.events import AwaitedCall, PermissionChoice
from gateway.sessions.permission_choices import ChosenAnswer, chosen
from gateway.sessions.settings import SessionSettings


def options(choices: Iterable[PermissionChoice]) -> list[PermissionOption]:
    """Return the choices as the options of a request."""
    return [PermissionOption(option_id=choice.id, name=choice.name, kind=choice.kind) for choice in choices]


def option_of(result: Mapping[str, Any]) -> str | None:
    """Return the id of the option in the client's result; empty for an invalid result, None where the client has cancelled."""
    try:
        outcome = RequestPermissionResponse.model_validate(result).outcome
    except ValidationError:
        return ""
    return outcome.option_id if isinstance(outcome, AllowedOutcome) else None


def answer_of(call: AwaitedCall, tool: str, settings: SessionSettings, result: Mapping[str, Any]) -> ChosenAnswer | None:
    """Return the choice in the client's result; None where the client has cancelled.

    An unknown option, or an invalid result, is a rejection.
    """
    option = option_of(result)
    if option is None:
        return None
    return chosen(call, tool, settings, option) or ChosenAnswer(call.id, tool, "reject_once")

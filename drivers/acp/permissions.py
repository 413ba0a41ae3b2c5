"""The permissions of an ACP session: which tools run, ask or are denied, and the protocol's permission requests. No I/O.

Of an arbitrary agent's own tools a client knows the kinds only, so tools are granted by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from acp.schema import (
    AllowedOutcome,
    DeniedOutcome,
    PermissionOption,
    PermissionOptionKind,
    RequestPermissionRequest,
    RequestPermissionResponse,
)

from drivers.acp.tool_calls import ToolCallState
from drivers.contract.agent_specs import no_rules as nothing_left
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.driver_info import ToolGrant

Verdict = Literal["allow", "ask", "deny"]

KINDS = get_args(PermissionOptionKind)
"""The known kinds of permission options."""
READ_KINDS = frozenset({"read", "search", "edit", "move", "delete"})
WRITE_KINDS = frozenset({"edit", "move", "delete"})
CLIENT_METHODS: dict[str, tuple[str, frozenset[str]]] = {
    "fs/read_text_file": ("read", READ_KINDS),
    "fs/write_text_file": ("edit", WRITE_KINDS),
    "terminal/create": ("execute", frozenset({"execute"})),
}
"""Client methods that need permission: the kind of each, and the kinds of the calls that it may belong to."""
DENIED, NOT_ENABLED = "The user did not permit this tool call.", "This tool is not enabled in this session."
RUN_CANCELLED = "The run was cancelled."
CANCELLED_OUTCOME: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A call that waits for the client's approval: of a permission request (`options`), of a client method (`service`), or of a
    change of a granted call, for which the agent has made no request (`request_id` is None).

    `always_ask`: the client is asked even if it does not list the tool.
    """

    call: ToolCallState
    request_id: int | str | None
    options: tuple[PermissionOption, ...] = ()
    service: ClientRequest | None = None
    always_ask: bool = False


class Grants:
    """The tools of a session.

    grants: the listed tools; a trusted one runs without asking.
    allow_all: every tool runs; for tasks, where no client can be asked.
    ask_prefixes: tools whose names begin so are not listed one by one, and ask.
    agent_asks: the agent has a policy by these grants, and requests permission by it. It reads files before that, so reading
        needs no further permission.
    left_to_agent: whether the agent itself decides about calls of a tool that is not trusted, and so does not ask about some.
    """

    def __init__(
        self,
        grants: Iterable[ToolGrant] = (),
        *,
        allow_all: bool = False,
        ask_prefixes: tuple[str, ...] = (),
        agent_asks: bool = False,
        left_to_agent: Callable[[str], bool] = nothing_left,
    ) -> None:
        self._left_to_agent = left_to_agent
        self._trust = {grant.name: grant.trust for grant in grants}
        self._allow_all, self._ask_prefixes = allow_all, ask_prefixes
        self.agent_asks = agent_asks

    def verdict(self, name: str) -> Verdict:
        """Whether a call of that tool runs, asks the client, or is denied."""
        if self._allow_all or self._trust.get(name):
            return "allow"
        return "ask" if name in self._trust or name.startswith(self._ask_prefixes) else "deny"

    def left_to_agent(self, name: str) -> bool:
        """Whether the agent decides about the calls of a listed tool."""
        return name in self._trust and self._left_to_agent(name)

    def lists_any(self, names: Iterable[str]) -> bool:
        """Whether one of these tools is listed, trusted or not."""
        return self._allow_all or any(name in self._trust for name in names)


def permission_request(params: Mapping[str, Any]) -> RequestPermissionRequest:
    """The parameters of a permission request, without options of kinds that are not known. Raises ValueError."""
    options = params.get("options")
    if isinstance(options, list):
        known = [option for option in options if not isinstance(option, dict) or str(option.get("kind")) in KINDS]
        params = {**params, "options": known}
    return RequestPermissionRequest.model_validate(params)


def permission_response(options: Sequence[PermissionOption], *, granted: bool) -> RequestPermissionResponse:
    """Allows or rejects once. Without an option for that: rejects always, and `cancelled` where no option is narrow enough."""
    kinds = ("allow_once",) if granted else ("reject_once", "reject_always")
    chosen = next((option for kind in kinds for option in options if option.kind == kind), None)
    if chosen is None:
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
    return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))


def service_output(answer: ClientResponse) -> str:
    """The result of a client method as a tool's output."""
    return str(answer.result.get("content") or answer.result.get("terminalId") or "done")

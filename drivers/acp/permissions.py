"""Who may do what in an ACP session: the session's tools by name, and the protocol's permission requests; pure.

An agent's own tools are known to a client by their kinds only, so the kinds are the names of the tools that are granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from acp.schema import AllowedOutcome, DeniedOutcome, PermissionOption, RequestPermissionResponse

from drivers.acp.tool_calls import Call
from drivers.contract.client_services import ClientRequest, ClientResponse
from drivers.contract.info import ToolGrant

Verdict = Literal["allow", "ask", "deny"]

READS = frozenset({"read", "search", "edit", "move", "delete"})
WRITES = frozenset({"edit", "move", "delete"})
SERVICES: dict[str, tuple[str, frozenset[str]]] = {
    "fs/read_text_file": ("read", READS),
    "fs/write_text_file": ("edit", WRITES),
    "terminal/create": ("execute", frozenset({"execute"})),
}
"""Services of this client that need leave: the kind each is, and the kinds of calls that it belongs to."""
DENIED, UNLISTED = "The user did not permit this tool call.", "This tool is not enabled in this session."


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A call that waits for the client's word: on a permission request, or on a service that the agent asked for."""

    call: Call
    request_id: int | str
    options: tuple[PermissionOption, ...] = ()
    service: ClientRequest | None = None


class Grants:
    """The session's tools. `everything` is for a task, whose operator has said so beforehand; `asked` is how the names of tools
    begin that are there without being listed, and are asked about; `services`: the agent itself asks before it
    uses files."""

    def __init__(
        self, grants: Iterable[ToolGrant] = (), *, everything: bool = False, asked: tuple[str, ...] = (), services: bool = False
    ) -> None:
        self._trust = {grant.name: grant.trust for grant in grants}
        self._everything, self._asked = everything, asked
        self.services = services

    def verdict(self, name: str) -> Verdict:
        """Whether a call of that tool runs, waits for the client, or does not run."""
        if self._everything or self._trust.get(name):
            return "allow"
        return "ask" if name in self._trust or name.startswith(self._asked) else "deny"

    def any_of(self, names: Iterable[str]) -> bool:
        return self._everything or any(name in self._trust for name in names)


def outcome(options: Sequence[PermissionOption], *, granted: bool) -> RequestPermissionResponse:
    """The answer that grants or rejects this once; where there is no such option, the nearest that is no wider."""
    wanted = ("allow_once",) if granted else ("reject_once", "reject_always")
    chosen = next((option for kind in wanted for option in options if option.kind == kind), None)
    if chosen is None:
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
    return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id))


CANCELLED: dict[str, Any] = {"outcome": {"outcome": "cancelled"}}


def output_of_service(answer: ClientResponse) -> str:
    """A service's result as a tool's output."""
    return str(answer.result.get("content") or answer.result.get("terminalId") or "done")

"""What `codex app-server` asks in a turn: permissions and application-side tools; who answers, and with what words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drivers.codecs.json_rpc import JsonRpcPeer
from drivers.codex.content import tool_output
from drivers.codex.grants import Grants
from drivers.codex.items import DENIED, Call
from drivers.codex.mcp_servers import QUESTION, call_asked_about
from drivers.codex.turn import TurnStream
from drivers.contract.agent import PermissionReply, Reply
from drivers.contract.client_services import METHOD_NOT_FOUND
from drivers.contract.events import AwaitedCall, Awaiting, OutputEvent

APPROVALS = {"item/commandExecution/requestApproval": "shell", "item/fileChange/requestApproval": "apply_patch"}
DECLINED: Mapping[str, dict[str, Any]] = {
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "mcpServer/elicitation/request": {"action": "decline", "content": None},
    "item/permissions/requestApproval": {"permissions": {}},
    "item/tool/requestUserInput": {"answers": {}},
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
"""The result that declines each request of the CLI. Other requests get an error."""
NOT_GRANTED = "it is not enabled in this session"


@dataclass(slots=True)
class Asked:
    """A request that waits for the client."""

    request_id: Any
    wants: Literal["result", "permission"]
    announced: bool = False
    of_server: bool = False

    def verdict(self, *, granted: bool) -> dict[str, Any]:
        """The answer to a request for permission."""
        if self.of_server:
            return {"action": "accept", "content": {}} if granted else {"action": "decline", "content": None}
        return {"decision": "accept" if granted else "decline"}


class Asks:
    """The requests of one turn. `open` are those that wait for the client, by the id of their call."""

    def __init__(self, rpc: JsonRpcPeer, grants: Grants, app_tools: frozenset[str], turn: TurnStream) -> None:
        self._rpc, self._grants, self._app_tools, self._turn = rpc, grants, app_tools, turn
        self.open: dict[str, Asked] = {}
        self._servers_asked: set[str] = set()

    @property
    def announced(self) -> bool:
        """Whether the client knows of one that it has not answered."""
        return any(asked.announced for asked in self.open.values())

    def take(self, request_id: Any, method: str, params: dict[str, Any]) -> list[OutputEvent] | None:
        """The events of a request; None if it is of no known sort, and declined."""
        if method in APPROVALS:
            return self._approval(request_id, APPROVALS[method], params)
        if method == QUESTION and (of_server := self._server_call(request_id, params)) is not None:
            return of_server
        if method == "item/tool/call" and params["tool"] in self._app_tools:
            given = params.get("arguments")
            call = Call(params["callId"], params["tool"], given if isinstance(given, dict) else {})
            self.open[call.id] = Asked(request_id, "result")
            return self._turn.call(call)
        decline(self._rpc, request_id, method)
        return None

    def announce(self) -> Awaiting:
        """All that wait, told to the client."""
        for asked in self.open.values():
            asked.announced = True
        return Awaiting(calls=tuple(AwaitedCall(id=call_id, wants=asked.wants) for call_id, asked in self.open.items()))

    def reply(self, reply: Reply, thread_id: str | None) -> None:
        """Pass the client's answer on."""
        asked = self.open.pop(reply.call_id, None)
        if asked is None:
            return
        if asked.wants == "permission":
            self._permit(asked, reply, thread_id)
        elif isinstance(reply, PermissionReply):
            said = f"{DENIED}: {reply.reason}" if reply.reason else DENIED
            self._rpc.respond(asked.request_id, {"contentItems": tool_output(said), "success": False})
        else:
            self._rpc.respond(asked.request_id, {"contentItems": tool_output(reply.content), "success": True})

    def _approval(self, request_id: Any, name: str, params: dict[str, Any]) -> list[OutputEvent]:
        call_id = params["itemId"]
        events = self._turn.ask(call_id, params.get("reason"))
        call = self._turn.calls.get(call_id)
        verdict = self._grants.verdict(name, params, call.input.get("changes", []) if call else [])
        if verdict == "ask" and call is not None:
            self.open[call_id] = Asked(request_id, "permission")
        elif verdict == "accept":
            self._rpc.respond(request_id, {"decision": "accept"})
        else:
            self._turn.denials[call_id] = NOT_GRANTED
            self._rpc.respond(request_id, {"decision": "decline"})
        return events

    def _server_call(self, request_id: Any, params: dict[str, Any]) -> list[OutputEvent] | None:
        """A call of a server that the client has brought along: asked about, unless its tool is trusted."""
        calls = self._turn.calls.values()
        call = call_asked_about(params, (call for call in calls if call.id not in self._servers_asked))
        if call is None:
            return None
        self._servers_asked.add(call.id)
        asked = Asked(request_id, "permission", of_server=True)
        if self._grants.trusts(call.name):
            self._rpc.respond(request_id, asked.verdict(granted=True))
        else:
            self.open[call.id] = asked
        return []

    def _permit(self, asked: Asked, reply: Reply, thread_id: str | None) -> None:
        if isinstance(reply, PermissionReply) and reply.granted:
            return self._rpc.respond(asked.request_id, asked.verdict(granted=True))
        reason = reply.reason if isinstance(reply, PermissionReply) else None
        self._turn.denials[reply.call_id] = reason
        call = self._turn.calls.get(reply.call_id)
        if reason and call is not None:
            # A declined call has no place for a reason: it follows as the user's word, right after the call's output.
            said = {"type": "text", "text": f"The call of {call.name} was denied: {reason}", "text_elements": []}
            params = {"threadId": thread_id, "expectedTurnId": self._turn.turn_id, "input": [said]}
            self._rpc.request("turn/steer", params, lambda result, error: [])
        self._rpc.respond(asked.request_id, asked.verdict(granted=False))


def decline(rpc: JsonRpcPeer, request_id: Any, method: str) -> None:
    """Decline a request of the CLI."""
    if method in DECLINED:
        rpc.respond(request_id, DECLINED[method])
    else:
        rpc.respond_error(request_id, METHOD_NOT_FOUND, f"{method} is not supported")

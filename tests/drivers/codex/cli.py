"""Simulates the codex CLI line by line, for what neither a recording nor a dialogue has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from drivers.codex.app_server import CodexAppCodec
from drivers.codex.grants import Grants
from drivers.codex.handshake import SessionRequest
from drivers.contract.agent import Prompt
from drivers.contract.driver_info import ToolGrant
from drivers.contract.events import NativeSession, OutputEvent

Json = dict[str, Any]
RUN = {"type": "commandExecution", "id": "c1", "command": "/bin/bash -lc 'ls'", "cwd": "/work", "status": "inProgress"}
PATCH = {"type": "fileChange", "id": "p1", "changes": [{"path": "/work/a", "kind": {"type": "add"}, "diff": "x"}]}


class Server:
    """The CLI's side of a codec."""

    def __init__(self, *grants: str, trusted: Sequence[str] = (), confined: bool = False, folder: str = "/work") -> None:
        tools = [*(ToolGrant(name) for name in grants), *(ToolGrant(name, trust=True) for name in trusted)]
        granted = Grants.of(tools, "", (folder,), confined=confined)
        self.codec = CodexAppCodec(SessionRequest(granted, {"cwd": folder, "config": {}}))
        for result in ({}, {"config": {}}, {"thread": {"id": "t"}}):
            self.respond(**result)

    def respond(self, **result: Any) -> None:
        """Respond to the codec's latest request."""
        assert self.send({"id": self.written()[-1]["id"], "result": result}) == []

    def written(self) -> list[Json]:
        lines = [json.loads(line) for line in bytes(self.codec.outbox).splitlines()]
        self.codec.outbox.clear()
        return [line for line in lines if line.get("method") != "initialized"]

    def send(self, message: Json) -> list[OutputEvent]:
        events = self.codec.receive(json.dumps(message).encode())
        return [event for event in events if not isinstance(event, NativeSession)]

    def notify(self, method: str, turn: str, **params: Any) -> list[OutputEvent]:
        return self.send({"method": method, "params": {"threadId": "t", "turnId": turn, **params}})

    def begin(self, turn: str) -> None:
        self.codec.prompt(Prompt("go"))
        self.respond(turn={"id": turn})
        self.send({"method": "turn/started", "params": {"threadId": "t", "turn": {"id": turn}}})

    def complete(self, turn: str) -> list[OutputEvent]:
        return self.send({"method": "turn/completed", "params": {"threadId": "t", "turn": {"id": turn, "status": "completed"}}})

    def delta(self, turn: str, text: str) -> list[OutputEvent]:
        return self.notify("item/agentMessage/delta", turn, itemId=f"m-{turn}", delta=text)

    def request(self, method: str, turn: str, item: str, **params: Any) -> list[OutputEvent]:
        return self.send({"id": 70, "method": method, "params": {"threadId": "t", "turnId": turn, "itemId": item, **params}})

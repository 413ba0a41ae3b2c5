"""The first exchange with `codex app-server`, until its thread takes prompts: greet, log in, read settings, open, seed."""

from __future__ import annotations

from typing import Any

from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codex.thread_start import Opening
from drivers.contract.errors import AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import OutputEvent

CLIENT = {"clientInfo": {"name": "portico", "title": "Portico", "version": "1"}, "capabilities": {"experimentalApi": True}}
"""Dynamic tools and seeds are part of what the CLI calls its experimental API (0.169.0)."""


class Handshake:
    """`ready` when the thread takes prompts; `refusal` is why it will not."""

    def __init__(self, rpc: JsonRpcPeer, opening: Opening) -> None:
        self._rpc, self._opening = rpc, opening
        self.id: str | None = None
        self.native_id: str | None = None
        self.model: str | None = None
        self.ready = False
        self.start_error: DriverError | None = None
        if opening.resume is not None and not opening.resumable:
            self.start_error = ResumeFailed("the codex thread was started with other application-side tools")
        else:
            rpc.request("initialize", CLIENT, self._initialized)

    def _initialized(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self._refused(error):
            return []
        self._rpc.notify("initialized")
        if not self._opening.api_key:
            return self._read_config()
        # Kept in the process' memory only: it runs with `cli_auth_credentials_store="ephemeral"`.
        self._rpc.request("account/login/start", {"type": "apiKey", "apiKey": self._opening.api_key}, self._logged_in)
        return []

    def _logged_in(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        return [] if self._refused(error) else self._read_config()

    def _read_config(self) -> list[OutputEvent]:
        self._rpc.request("config/read", {"cwd": self._opening.thread["cwd"]}, self._configured)
        return []

    def _configured(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if not self._refused(error):
            self._rpc.request(*self._opening.request((result or {})["config"]), self._opened)
        return []

    def _opened(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self._refused(error):
            return []
        opened = result or {}
        thread_id = str(opened["thread"]["id"])
        self.id, self.native_id, self.model = thread_id, self._opening.native_id(thread_id), opened.get("model")
        if self._opening.seed and self._opening.resume is None:
            self._rpc.request("thread/inject_items", {"threadId": thread_id, "items": list(self._opening.seed)}, self._seeded)
        else:
            self.ready = True
        return []

    def _seeded(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        self.ready = not self._refused(error)
        return []

    def _refused(self, error: RpcError | None) -> bool:
        if error is not None:
            kind = AgentUnavailable if self._opening.resume is None else ResumeFailed
            self.start_error = kind(f"codex: {error.message}")
        return error is not None

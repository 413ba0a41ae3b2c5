"""What `codex app-server` says of itself: whether it is logged in, and which models it offers."""

from __future__ import annotations

from typing import Any

from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codex.handshake import CLIENT
from drivers.contract.codec import Codec
from drivers.contract.errors import AgentUnavailable
from drivers.contract.events import OutputEvent
from drivers.contract.lines import parse_object


class CodexProbe(Codec):
    """Asks, and is `ready` when it has been told. Asked so, since the CLI ends at the end of its input without an answer.

    `logged_in` is also true of a provider of the user's own that needs no login, of which `codex login status` knows nothing.
    """

    title = "codex"

    def __init__(self) -> None:
        super().__init__()
        self.logged_in: bool | None = None
        self.models: tuple[str, ...] = ()
        self._rpc = JsonRpcPeer(self.outbox, version=None)
        self._rpc.request("initialize", CLIENT, self._initialized)

    def receive(self, line: bytes) -> list[OutputEvent]:
        native = parse_object(line)
        if native is not None and "method" not in native and "id" in native:
            try:
                self._rpc.receive_response(native)
            except (KeyError, TypeError, AttributeError) as error:
                self.start_error = AgentUnavailable(f"codex app-server answers in a way that is not known: {error!r}")
        return []

    def _initialized(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error:
            self.start_error = AgentUnavailable(f"codex: {error.message}")
            return []
        self._rpc.notify("initialized")
        self._rpc.request("account/read", {}, self._account)
        return []

    def _account(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if result is not None:
            self.logged_in = result.get("account") is not None or not result["requiresOpenaiAuth"]
        self._rpc.request("model/list", {}, self._listed)
        return []

    def _listed(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if result is not None:
            self.models = tuple(str(model["model"]) for model in result["data"] if not model.get("hidden"))
        self.phase = "ready"
        return []

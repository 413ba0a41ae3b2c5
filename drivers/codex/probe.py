"""What `codex app-server` reports of itself: whether it is logged in, which models it has, and its skills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drivers.codecs.json_lines import JsonLineCodec
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codex.commands import commands_of
from drivers.codex.handshake import CLIENT
from drivers.contract.driver_info import ModelName
from drivers.contract.errors import AgentUnavailable
from drivers.contract.events import OutputEvent, SlashCommand


class CodexProbe(JsonLineCodec):
    """Requests all three, and is `ready` when it has the answers. The CLI ends at the end of its input without answering.

    Attributes:
        logged_in: Also True for a provider of the user's own that needs no login, which `codex login status` does not know.
        models: The models that the CLI lists.
        model_names: Their names and descriptions.
        efforts: The levels of effort that any of them has.
        fast_models: Those that have a fast mode.
        commands: The slash commands of a session in the folder `cwd`.
    """

    title = "codex"

    def __init__(self, cwd: Path) -> None:
        super().__init__()
        self._cwd = str(cwd)
        self.logged_in: bool | None = None
        self.models: tuple[str, ...] = ()
        self.model_names: tuple[ModelName, ...] = ()
        self.efforts: tuple[str, ...] = ()
        self.fast_models: tuple[str, ...] = ()
        self.commands: tuple[SlashCommand, ...] = ()
        self._rpc = JsonRpcPeer(self.outbox, version=None)
        self._rpc.request("initialize", CLIENT, self._initialized)

    def dispatch(self, message: dict[str, Any]) -> list[OutputEvent]:
        if "method" not in message and "id" in message:
            self._rpc.receive_response(message)
        return []

    def malformed(self, message: dict[str, Any]) -> list[OutputEvent]:
        self.start_error = AgentUnavailable(f"codex app-server gives an unknown answer: {str(message)[:200]}")
        return []

    def deliver(self, events: list[OutputEvent]) -> list[OutputEvent]:
        return []

    def _initialized(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error is not None:
            self.start_error = AgentUnavailable(f"codex: {error.message}")
            return []
        self._rpc.notify("initialized")
        self._rpc.request("config/read", {"cwd": self._cwd}, self._config_read)
        return []

    def _config_read(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error is not None:
            # A session begins with the same request.
            self.start_error = AgentUnavailable(f"it opens no sessions: config/read: {error.describe()}")
            return []
        self._rpc.request("account/read", {}, self._account_read)
        return []

    def _account_read(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if result is not None and ("account" in result or "requiresOpenaiAuth" in result):
            self.logged_in = result.get("account") is not None or not result.get("requiresOpenaiAuth", True)
        self._rpc.request("model/list", {}, self._models_listed)
        return []

    def _models_listed(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if result is not None:
            listed = [model for model in result.get("data") or () if model.get("model") and not model.get("hidden")]
            self.models = tuple(str(model["model"]) for model in listed)
            self.model_names = tuple(
                ModelName(str(model["model"]), str(model["displayName"]), str(model.get("description") or ""))
                for model in listed
                if model.get("displayName")
            )
            levels = [level.get("reasoningEffort") for model in listed for level in model.get("supportedReasoningEfforts") or ()]
            self.efforts = tuple(dict.fromkeys(str(level) for level in levels if level))
            # "Deprecated: use serviceTiers", whose ids are those of the model's API: `priority`, with the name "Fast".
            self.fast_models = tuple(str(m["model"]) for m in listed if "fast" in (m.get("additionalSpeedTiers") or ()))
        self._rpc.request("skills/list", {"cwds": [self._cwd]}, self._skills_listed)
        return []

    def _skills_listed(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        self.commands = commands_of(result)
        self.phase = "ready"
        return []

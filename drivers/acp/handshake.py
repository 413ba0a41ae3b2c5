"""How an ACP session is opened: initialize, new or resume or load, then its mode, model and other settings; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from acp import PROTOCOL_VERSION
from acp.schema import (
    AuthenticateRequest,
    ClientCapabilities,
    ClientSessionCapabilities,
    Error,
    FileSystemCapabilities,
    Implementation,
    InitializeRequest,
    InitializeResponse,
    LoadSessionRequest,
    NewSessionRequest,
    NewSessionResponse,
    ResumeSessionRequest,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
)

from drivers.acp.app_tools import mcp_servers
from drivers.acp.mcp_servers import brought
from drivers.acp.rpc import AUTH_REQUIRED, Rpc, said
from drivers.acp.settings import values_of
from drivers.contract.errors import AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import OutputEvent, SlashCommand
from drivers.contract.mcp_servers import McpServer
from drivers.contract.tool_server import ToolServer

BARRIER = "_portico/barrier"
"""A request that no agent knows; its refusal comes after everything that the agent had begun to write before."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The session that is wanted. `settings` are by the ids of the agent's config options; `late_replay` is an agent
    that answers `session/load` before it has replayed the session."""

    cwd: str
    resume: str | None = None
    mode: str = ""
    model: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    auth_method: str = ""
    reads: bool = False
    writes: bool = False
    terminals: bool = False
    late_replay: bool = False
    how_to_log_in: str = ""
    tool_server: ToolServer | None = None
    servers: tuple[McpServer, ...] = ()
    directories: tuple[str, ...] = ()


@dataclass
class Offer:
    """What the agent offers: itself, and of a session its modes, models, config options with their values, and commands."""

    agent: InitializeResponse | None = None
    session_id: str | None = None
    modes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    model_option: str | None = None
    unauthenticated: bool = False
    commands: tuple[SlashCommand, ...] = ()

    @property
    def images(self) -> bool | None:
        """Whether the agent takes images; None until it has said so."""
        if self.agent is None:
            return None
        can = self.agent.agent_capabilities
        return bool(can and can.prompt_capabilities and can.prompt_capabilities.image)

    @property
    def additional_directories(self) -> bool | None:
        """Whether the agent takes folders besides the working folder; None until it has said so."""
        if self.agent is None:
            return None
        can = self.agent.agent_capabilities and self.agent.agent_capabilities.session_capabilities
        return bool(can and can.additional_directories is not None)


class Opening:
    """Opens one session; `opened` is called when it takes prompts, `refused` when it will not."""

    def __init__(self, rpc: Rpc, wanted: Wanted, opened: Callable[[], None], refused: Callable[[DriverError], None]) -> None:
        self.offer = Offer()
        self._rpc, self._wanted, self._opened, self._refused = rpc, wanted, opened, refused
        self._authenticated = False
        self._linger: Callable[[], None] | None = None
        self._steps = self._settings()
        capabilities = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=wanted.reads, write_text_file=wanted.writes),
            terminal=wanted.terminals,
            session=ClientSessionCapabilities.model_validate({"configOptions": {"boolean": {}}}),
        )
        client = Implementation(name="portico", title="Portico", version="1")
        request = InitializeRequest(protocol_version=PROTOCOL_VERSION, client_capabilities=capabilities, client_info=client)
        self._rpc.request("initialize", request, self._initialized)

    def linger(self, opened: Callable[[], None]) -> None:
        """Once it is open, which `opened` is told, wait for what the agent has begun to write behind its answers."""
        self._linger = opened

    def take_options(self, session: Mapping[str, Any]) -> None:
        """Modes and config options, as an agent's answers and updates give them; and `models`, which older agents have."""
        offer = self.offer
        modes, models, options = session.get("modes"), session.get("models"), session.get("configOptions")
        if isinstance(modes, dict):
            offer.modes = tuple(mode["id"] for mode in modes["availableModes"])
        if isinstance(models, dict):
            offer.models = tuple(model["modelId"] for model in models["availableModels"])
            offer.model = models.get("currentModelId")
        if isinstance(options, list):
            offer.options = {option["id"]: option for option in options}
            chosen = next((option for option in options if option.get("category") == "model"), None)
            if chosen is not None:
                offer.model_option, offer.model = chosen["id"], chosen.get("currentValue")
                offer.models = tuple(values_of(chosen))

    def _initialized(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        if error:
            return self._refuse(AgentUnavailable(f"it refused to start: {said(error)}"))
        self.offer.agent = InitializeResponse.model_validate(result)
        if self.offer.agent.protocol_version != PROTOCOL_VERSION:
            theirs = self.offer.agent.protocol_version
            return self._refuse(AgentUnavailable(f"it speaks version {theirs} of the protocol, not {PROTOCOL_VERSION}"))
        return self._open()

    def _open(self) -> list[OutputEvent]:
        wanted, can = self._wanted, self.offer.agent.agent_capabilities if self.offer.agent else None
        if wanted.directories and not self.offer.additional_directories:
            return self._refuse(AgentUnavailable(f"it takes no additional directories, but {wanted.directories[0]} is to be one"))
        servers = [*mcp_servers(wanted.tool_server, can), *brought(wanted.servers, can)]
        place: dict[str, Any] = {"cwd": wanted.cwd, "mcp_servers": servers}
        if wanted.directories:
            place["additional_directories"] = list(wanted.directories)
        if wanted.resume is None:
            self._rpc.request("session/new", NewSessionRequest(**place), self._session)
        elif can and can.session_capabilities and can.session_capabilities.resume is not None:
            self._rpc.request("session/resume", ResumeSessionRequest(session_id=wanted.resume, **place), self._session)
        elif can and can.load_session:
            load = LoadSessionRequest(session_id=wanted.resume, **place)
            self._rpc.request("session/load", load, self._loaded if wanted.late_replay else self._session)
        else:
            self._refuse(ResumeFailed("the agent cannot resume sessions"))
        return []

    def _loaded(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        if error:
            return self._session(result, error)
        self._rpc.request(BARRIER, {}, lambda _result, _error: self._session(result, None))
        return []

    def _session(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        if error:
            return self._not_opened(error)
        answer = result or {}
        if self._wanted.resume is None:
            self.offer.session_id = NewSessionResponse.model_validate(answer).session_id
        else:
            self.offer.session_id = self._wanted.resume
        self.take_options(answer)
        return self._settle()

    def _not_opened(self, error: Error) -> list[OutputEvent]:
        if error.code != AUTH_REQUIRED:
            kind = AgentUnavailable if self._wanted.resume is None else ResumeFailed
            return self._refuse(kind(f"it did not open the session: {said(error)}"))
        if self._wanted.auth_method and not self._authenticated:
            self._authenticated = True
            self._rpc.request("authenticate", AuthenticateRequest(method_id=self._wanted.auth_method), self._let_in)
            return []
        self.offer.unauthenticated = True
        ways = [method.id for method in (self.offer.agent and self.offer.agent.auth_methods) or ()]
        hint = self._wanted.how_to_log_in or _login_hint(ways)
        return self._refuse(AgentUnavailable(f"it is not logged in: {said(error)}; {hint}"))

    def _let_in(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        if error:
            self.offer.unauthenticated = True
            return self._refuse(AgentUnavailable(f"it did not log in by {self._wanted.auth_method!r}: {said(error)}"))
        return self._open()

    def _settings(self) -> Iterator[Callable[[], None]]:
        """The requests for the mode, the model and the other settings."""
        wanted = self._wanted
        if wanted.mode:
            yield self._set_mode
        if wanted.model:
            yield self._set_model
        for name, value in wanted.settings.items():
            yield partial(self._set_option, name, value)

    def _settle(self) -> list[OutputEvent]:
        """Send the next of the settings; the session is open when none is left."""
        step = next(self._steps, None)
        if step is not None:
            step()
        elif self._linger is not None:
            self._linger()
            self._rpc.request(BARRIER, {}, self._arrived)
        else:
            self._opened()
        return []

    def _arrived(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        self._opened()
        return []

    def _set_mode(self) -> None:
        mode = self._wanted.mode
        if mode not in self.offer.modes:
            return self._no_such("mode", mode, self.offer.modes)
        self._rpc.request("session/set_mode", SetSessionModeRequest(session_id=self._session_id, mode_id=mode), self._set)

    def _set_model(self) -> None:
        model = self._wanted.model
        if self.offer.models and model not in self.offer.models:
            return self._no_such("model", model, self.offer.models)
        self.offer.model = model
        if self.offer.model_option is not None:
            self._set_option(self.offer.model_option, model)
            return
        # The older form, which the protocol has given up and some agents still have.
        self._rpc.request("session/set_model", {"sessionId": self._session_id, "modelId": model}, self._set)

    def _set_option(self, name: str, value: str) -> None:
        option = self.offer.options.get(name)
        if option is None:
            return self._no_such("config option", name, self.offer.options)
        if option.get("type") == "boolean":
            if value not in ("true", "false"):
                return self._no_such(f"value of {name}", value, ("true", "false"))
            given: Any = SetSessionConfigOptionBooleanRequest(
                session_id=self._session_id, config_id=name, type="boolean", value=value == "true"
            )
        else:
            if value not in values_of(option):
                return self._no_such(f"value of {name}", value, values_of(option))
            given = SetSessionConfigOptionSelectRequest(session_id=self._session_id, config_id=name, value=value)
        self._rpc.request("session/set_config_option", given, self._set)

    def _set(self, result: dict[str, Any] | None, error: Error | None) -> list[OutputEvent]:
        if error:
            return self._refuse(AgentUnavailable(f"it did not take the session's settings: {said(error)}"))
        self.take_options(result or {})
        return self._settle()

    def _no_such(self, what: str, given: str, known: Iterable[str]) -> None:
        offered = f"there are {', '.join(known)}" if known else "it offers none"
        self._refuse(AgentUnavailable(f"it has no {what} {given!r}; {offered}"))

    @property
    def _session_id(self) -> str:
        return self.offer.session_id or ""

    def _refuse(self, error: DriverError) -> list[OutputEvent]:
        self._refused(error)
        return []


def _login_hint(ways: list[str]) -> str:
    methods = f", or set the option auth_method to one of {', '.join(ways)}" if ways else ""
    return f"log in with the agent's own program{methods}"

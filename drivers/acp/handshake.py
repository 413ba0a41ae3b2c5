"""The handshake of an ACP session: `initialize`, then `session/new`, `session/resume` or `session/load`, then its mode, model and
config options. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from acp import PROTOCOL_VERSION
from acp.schema import (
    AgentCapabilities,
    AuthenticateRequest,
    ClientCapabilities,
    ClientSessionCapabilities,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
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

from drivers.acp.config_options import values_of
from drivers.acp.mcp_servers import session_servers
from drivers.codecs.json_rpc import JsonRpcPeer, RpcError, as_json
from drivers.contract.errors import AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import OutputEvent, SlashCommand
from drivers.contract.mcp_servers import McpServer
from drivers.contract.tool_server import ToolServer

AUTH_REQUIRED = -32000
"""The protocol's error code of a request that needs a login first."""
BARRIER = "_portico/barrier"
"""An unknown request. The agent rejects it after everything that it has begun to write before."""

REPLAYED = frozenset({"user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "tool_call"})
"""The updates that replay the conversation of a loaded session (page "Session Setup")."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session that a driver requests of the agent.

    cwd: the working folder.
    resume: the id of the native session to resume; None for a new one.
    mode, model, config_options: what to set in the open session, config options by id; empty leaves the agent's default.
    earlier_modes: what earlier versions of the agent call `mode`: the first one that it has is set if it does not have `mode`.
    auth_method: the id of the authentication method to try, once, if the agent requires a login.
    login_hint: how to log in, for the error message; by default the agent's own program and methods.
    read_files, write_files, terminals: the client methods that are declared to the agent.
    questions: the agent may ask the user by forms.
    replays_after_load: the agent responds to `session/load` before it has replayed the session.
    tool_server: the gateway's MCP server of the application-side tools.
    mcp_servers: the MCP servers of the client.
    additional_directories: folders beside `cwd`.
    """

    cwd: str
    resume: str | None = None
    mode: str = ""
    model: str = ""
    config_options: Mapping[str, str] = field(default_factory=dict)
    earlier_modes: tuple[str, ...] = ()
    auth_method: str = ""
    login_hint: str = ""
    read_files: bool = False
    write_files: bool = False
    terminals: bool = False
    questions: bool = False
    replays_after_load: bool = False
    tool_server: ToolServer | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()


@dataclass
class SessionState:
    """What the agent has reported: its `initialize` response, and the session's id, modes, models, config options and commands.

    `model_option` is the id of the config option that sets the model; `login_required` is set when the agent has refused a
    session for want of a login.
    """

    agent: InitializeResponse | None = None
    id: str | None = None
    modes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    model: str | None = None
    model_option: str | None = None
    config_options: dict[str, Any] = field(default_factory=dict)
    commands: tuple[SlashCommand, ...] = ()
    login_required: bool = False

    @property
    def capabilities(self) -> AgentCapabilities | None:
        """The agent's capabilities; None before `initialize`, and for an agent that declares none."""
        return self.agent.agent_capabilities if self.agent else None

    @property
    def images(self) -> bool | None:
        """Whether the agent accepts images; None before `initialize`."""
        if self.agent is None:
            return None
        can = self.capabilities
        return bool(can and can.prompt_capabilities and can.prompt_capabilities.image)

    @property
    def resumable(self) -> bool:
        """Whether the agent can resume or load a session."""
        can = self.capabilities
        resumes = can and can.session_capabilities and can.session_capabilities.resume is not None
        return bool(can and (resumes or can.load_session))

    @property
    def additional_directories(self) -> bool | None:
        """Whether the agent accepts folders beside the working folder; None before `initialize`."""
        if self.agent is None:
            return None
        can = self.capabilities and self.capabilities.session_capabilities
        return bool(can and can.additional_directories is not None)

    def update(self, reported: Mapping[str, Any]) -> None:
        """Apply the modes, config options and (of agents such as gemini) models of a response or an update."""
        modes, models, options = reported.get("modes"), reported.get("models"), reported.get("configOptions")
        if isinstance(modes, dict):
            self.modes = tuple(mode["id"] for mode in modes["availableModes"])
        if isinstance(models, dict):
            self.models = tuple(model["modelId"] for model in models["availableModels"])
            self.model = models.get("currentModelId")
        if isinstance(options, list):
            self.config_options = {option["id"]: option for option in options}
            chosen = next((option for option in options if option.get("category") == "model"), None)
            if chosen is not None:
                self.model_option, self.model = chosen["id"], chosen.get("currentValue")
                self.models = tuple(values_of(chosen))


class Handshake:
    """Opens one session. Calls `ready` when it accepts prompts, `failed` when it cannot be opened."""

    def __init__(
        self, rpc: JsonRpcPeer, request: SessionRequest, ready: Callable[[], None], failed: Callable[[DriverError], None]
    ) -> None:
        self.session = SessionState()
        self._rpc, self._request, self._ready, self._failed = rpc, request, ready, failed
        self._login_tried = False
        self._opened: Callable[[], None] | None = None
        self._replayed = False
        self._settings = self._setting_requests()
        capabilities = ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=request.read_files, write_text_file=request.write_files),
            terminal=request.terminals,
            session=ClientSessionCapabilities.model_validate({"configOptions": {"boolean": {}}}),
            elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()) if request.questions else None,
        )
        client = Implementation(name="portico", title="Portico", version="1")
        initialize = as_json(
            InitializeRequest(protocol_version=PROTOCOL_VERSION, client_capabilities=capabilities, client_info=client)
        )
        # The models of the package acp (0.12.1) lack it.
        initialize["clientCapabilities"]["session"]["notices"] = {}
        self._rpc.request("initialize", initialize, self._initialized)

    def drain(self, opened: Callable[[], None]) -> None:
        """Call `opened` when the session is open, and delay `ready` until the agent has written what it began before that."""
        self._opened = opened

    def _initialized(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error:
            return self._fail(AgentUnavailable(f"it refused to start: {error.describe()}"))
        self.session.agent = InitializeResponse.model_validate(result)
        version = self.session.agent.protocol_version
        if version != PROTOCOL_VERSION:
            return self._fail(AgentUnavailable(f"it speaks version {version} of the protocol, not {PROTOCOL_VERSION}"))
        return self._open()

    def _open(self) -> list[OutputEvent]:
        request, can = self._request, self.session.capabilities
        directories = request.additional_directories
        if directories and not self.session.additional_directories:
            return self._fail(AgentUnavailable(f"it takes no additional directories, but {directories[0]} is to be one"))
        params: dict[str, Any] = {
            "cwd": request.cwd,
            "mcp_servers": session_servers(request.tool_server, request.mcp_servers, can),
        }
        if directories:
            params["additional_directories"] = list(directories)
        if request.resume is None:
            self._rpc.request("session/new", NewSessionRequest(**params), self._session)
        elif can and can.session_capabilities and can.session_capabilities.resume is not None:
            self._rpc.request("session/resume", ResumeSessionRequest(session_id=request.resume, **params), self._session)
        elif can and can.load_session:
            self._rpc.request("session/load", LoadSessionRequest(session_id=request.resume, **params), self._loaded)
        else:
            self._fail(ResumeFailed("the agent cannot resume sessions"))
        return []

    def replay(self, update: Mapping[str, Any]) -> None:
        """Take an update that the agent has sent before the session is open."""
        content = update.get("content")
        text = content.get("text") if isinstance(content, dict) else None
        # gemini 0.44 to 0.61 begin each session with a message of their own.
        if update["sessionUpdate"] in REPLAYED and not (isinstance(text, str) and text.startswith("<session_context>")):
            self._replayed = True

    def _loaded(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error or (self._replayed and not self._request.replays_after_load):
            return self._session(result, error)
        self._rpc.request(BARRIER, {}, lambda _result, _error: self._replay_ended(result))
        return []

    def _replay_ended(self, result: dict[str, Any] | None) -> list[OutputEvent]:
        if self._replayed:
            return self._session(result, None)
        # gemini 0.44 and 0.45 report success for a session whose conversation they have lost.
        return self._fail(ResumeFailed("it loaded the session, but replayed no message of it"))

    def _session(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error:
            return self._not_opened(error)
        response = result or {}
        if self._request.resume is None:
            self.session.id = NewSessionResponse.model_validate(response).session_id
        else:
            self.session.id = self._request.resume
        self.session.update(response)
        return self._next_setting()

    def _not_opened(self, error: RpcError) -> list[OutputEvent]:
        if error.code != AUTH_REQUIRED:
            kind = AgentUnavailable if self._request.resume is None else ResumeFailed
            return self._fail(kind(f"it did not open the session: {error.describe()}"))
        if self._request.auth_method and not self._login_tried:
            self._login_tried = True
            self._rpc.request("authenticate", AuthenticateRequest(method_id=self._request.auth_method), self._authenticated)
            return []
        self.session.login_required = True
        methods = [method.id for method in (self.session.agent and self.session.agent.auth_methods) or ()]
        hint = self._request.login_hint or _login_hint(methods)
        return self._fail(AgentUnavailable(f"it is not logged in: {error.describe()}; {hint}"))

    def _authenticated(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error:
            self.session.login_required = True
            return self._fail(AgentUnavailable(f"it did not log in by {self._request.auth_method!r}: {error.describe()}"))
        return self._open()

    def _setting_requests(self) -> Iterator[Callable[[], None]]:
        """Functions that request the mode, the model and each config option."""
        request = self._request
        if request.mode:
            yield self._set_mode
        if request.model:
            yield self._set_model
        for name, value in request.config_options.items():
            yield partial(self._set_option, name, value)

    def _next_setting(self) -> list[OutputEvent]:
        """Request the next setting; after the last one the session is open."""
        setting = next(self._settings, None)
        if setting is not None:
            setting()
        elif self._opened is not None:
            self._opened()
            self._rpc.request(BARRIER, {}, self._drained)
        else:
            self._ready()
        return []

    def _drained(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        self._ready()
        return []

    def _set_mode(self) -> None:
        names = (self._request.mode, *self._request.earlier_modes)
        mode = next((name for name in names if name in self.session.modes), None)
        if mode is None:
            return self._unknown("mode", names[0], self.session.modes)
        self._rpc.request("session/set_mode", SetSessionModeRequest(session_id=self._session_id, mode_id=mode), self._set)

    def _set_model(self) -> None:
        model = self._request.model
        if self.session.models and model not in self.session.models:
            return self._unknown("model", model, self.session.models)
        self.session.model = model
        if self.session.model_option is not None:
            self._set_option(self.session.model_option, model)
            return
        # The protocol has removed this method; agents with `models` in their response still have it.
        self._rpc.request("session/set_model", {"sessionId": self._session_id, "modelId": model}, self._set)

    def _set_option(self, name: str, value: str) -> None:
        option = self.session.config_options.get(name)
        if option is None:
            return self._unknown("config option", name, self.session.config_options)
        if option.get("type") == "boolean":
            if value not in ("true", "false"):
                return self._unknown(f"value of {name}", value, ("true", "false"))
            params: Any = SetSessionConfigOptionBooleanRequest(
                session_id=self._session_id, config_id=name, type="boolean", value=value == "true"
            )
        else:
            if value not in values_of(option):
                return self._unknown(f"value of {name}", value, values_of(option))
            params = SetSessionConfigOptionSelectRequest(session_id=self._session_id, config_id=name, value=value)
        self._rpc.request("session/set_config_option", params, self._set)

    def _set(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if error:
            return self._fail(AgentUnavailable(f"it did not take the session's settings: {error.describe()}"))
        self.session.update(result or {})
        return self._next_setting()

    def _unknown(self, what: str, requested: str, known: Iterable[str]) -> None:
        available = f"available: {', '.join(known)}" if known else "it has none"
        self._fail(AgentUnavailable(f"it has no {what} {requested!r}; {available}"))

    @property
    def _session_id(self) -> str:
        return self.session.id or ""

    def _fail(self, error: DriverError) -> list[OutputEvent]:
        self._failed(error)
        return []


def _login_hint(methods: list[str]) -> str:
    option = f", or set the option auth_method to one of {', '.join(methods)}" if methods else ""
    return f"log in with the agent's own program{option}"

"""Opens a session of `codex app-server`: initialize, log in, read the settings, then start, seed or resume a thread."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json

from drivers.codecs.json_rpc import JsonRpcPeer, RpcError
from drivers.codex.app_tools import names_for_cli
from drivers.codex.content import seed_items
from drivers.codex.grants import Grants, closed_modes
from drivers.codex.mcp_servers import GRANULAR_POLICY, settings
from drivers.contract.agent_specs import SessionSpec
from drivers.contract.driver_info import ASK_MODE, FAST_OPTION, MODE_OPTION, SLASH_OPTION, ToolSpec
from drivers.contract.errors import AgentUnavailable, DriverError, ResumeFailed
from drivers.contract.events import OutputEvent
from drivers.contract.mcp_servers import McpServer

CLIENT = {"clientInfo": {"name": "portico", "title": "Portico", "version": "1"}, "capabilities": {"experimentalApi": True}}
"""The parameters of `initialize`. Dynamic tools and seeds belong to what the CLI calls its experimental API (0.169.0)."""
RETRIES = {"request_max_retries": 1, "stream_max_retries": 3}
"""For a provider of the user's own that sets none: errors take 3 s, by default 25 s. Built-in providers take no settings."""
SERVICE_TIERS = {"on": "fast", "off": "default"}
"""The CLI's service tier for each value of the option `fast`. Models without a fast tier ignore it (0.169.0)."""

WIDTH = {"readOnly": 0, "read-only": 0, "workspaceWrite": 1, "workspace-write": 1}
"""How much each sandbox lets be written, by its name in a response and in a request; any other lets everything be written."""


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session that a fresh app-server is to open.

    Attributes:
        thread: Parameters of `thread/start` and `thread/resume`. `cwd` is the folder in which the CLI's process is started.
        app_tools: The application-side tools.
        resume: The native id of the thread to resume; None for a new one.
        seed: The history of a new thread, as Responses items.
        api_key: The key to log in with; None for the CLI's own login.
        servers: The client's MCP servers.
        directories: Folders to work in besides the working folder.
        slash_commands: Whether a prompt that begins with a `/` can be a command.
        effort: The option `effort`.
        modes: The modes that the session may have.
    """

    grants: Grants
    thread: dict[str, Any]
    app_tools: tuple[ToolSpec, ...] = ()
    resume: str | None = None
    seed: Sequence[dict[str, Any]] = ()
    api_key: str | None = field(default=None, repr=False)
    servers: tuple[McpServer, ...] = ()
    directories: tuple[str, ...] = ()
    slash_commands: bool = False
    effort: str | None = None
    modes: frozenset[str] = frozenset()

    @classmethod
    def of(cls, spec: SessionSpec, api_key: str | None = None) -> SessionRequest:
        """The request of a session."""
        options = spec.options
        directories = tuple(map(str, spec.additional_directories))
        mode = options.get(MODE_OPTION, ASK_MODE)
        grants = Grants.of(
            spec.tools,
            options.get("sandbox", ""),
            (str(spec.cwd), *directories),
            confined=spec.confined,
            mode=None if mode == ASK_MODE else mode,
            ruled=spec.permissions.ruled,
            lasting_choices=spec.permissions.lasting_choices,
        )
        thread: dict[str, Any] = {"cwd": str(spec.cwd), **_limits(grants, spec.mcp_servers)}
        # The CLI's own settings may name a model as the reviewer.
        thread["approvalsReviewer"] = "user"
        if options.get("model"):
            thread["model"] = options["model"]
        if spec.seed.system is not None:
            replaces = options.get("system_prompt") == "replace"
            thread["baseInstructions" if replaces else "developerInstructions"] = spec.seed.system
        thread["config"] = grants.config()
        if options.get("effort"):
            thread["config"]["model_reasoning_effort"] = options["effort"]
        if tier := SERVICE_TIERS.get(options.get(FAST_OPTION, "")):
            thread["serviceTier"] = tier
        names = {name: for_cli for for_cli, name in names_for_cli(tool.name for tool in spec.app_tools).items()}
        seed = seed_items(spec.seed.history, names)
        commands = options.get(SLASH_OPTION) == "on"
        effort = options.get("effort") or None
        return cls(
            grants,
            thread,
            spec.app_tools,
            spec.seed.resume,
            seed,
            api_key,
            spec.mcp_servers,
            directories,
            commands,
            effort,
            spec.permissions.modes - closed_modes(grants.trust),
        )

    def in_mode(self, mode: str) -> SessionRequest | None:
        """The same session in another of the CLI's own modes; None unless both modes are the CLI's."""
        grants = self.grants.in_mode(mode)
        return None if grants is None else replace(self, grants=grants, thread={**self.thread, **_limits(grants, self.servers)})

    def turn_settings(self, config: dict[str, Any]) -> dict[str, Any]:
        """Parameters of `turn/start` that give the thread the approval policy and the sandbox of this session, from that turn on.

        `config` is the CLI's own configuration. The CLI applies it to a sandbox that `thread/start` names, not to this one.
        """
        sandbox = self.thread["sandbox"]
        users = config.get("sandbox_workspace_write") or {}
        policies: dict[str, dict[str, Any]] = {
            "read-only": {"type": "readOnly", "networkAccess": False},
            "workspace-write": {
                "type": "workspaceWrite",
                "writableRoots": users.get("writable_roots") or [],
                "networkAccess": bool(users.get("network_access")),
                "excludeTmpdirEnvVar": bool(users.get("exclude_tmpdir_env_var")),
                "excludeSlashTmp": bool(users.get("exclude_slash_tmp")),
            },
            "danger-full-access": {"type": "dangerFullAccess"},
        }
        return {"approvalPolicy": self.thread["approvalPolicy"], "sandboxPolicy": policies[sandbox]}

    @property
    def tools_digest(self) -> str:
        """Identifies the set of application-side tools: a thread keeps the tools that it was started with."""
        if not self.app_tools:
            return ""
        return hashlib.sha256(to_json(_dynamic_tools(self.app_tools))).hexdigest()[:16]

    def native_id(self, thread_id: str) -> str:
        """The native id of the session: the thread's id and the digest of its tools."""
        return f"{thread_id}:{self.tools_digest}" if self.tools_digest else thread_id

    @property
    def resumable(self) -> bool:
        """Whether the thread to resume has the tools of this session."""
        return self.resume is not None and self.resume.partition(":")[2] == self.tools_digest

    def thread_request(self, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The method and parameters of the request that opens the thread, given the CLI's own configuration."""
        params = {**self.thread, "config": {**self.thread["config"], **_overrides(config, self.servers)}}
        if self.directories or self.resume is not None:
            params["runtimeWorkspaceRoots"] = self._roots(config)
        if self.resume is not None:
            # A resumed thread keeps its earlier settings where none are sent (0.169.0).
            params.setdefault("serviceTier", config.get("service_tier") or SERVICE_TIERS["off"])
            if config.get("model"):
                params.setdefault("model", config["model"])
            if config.get("model_reasoning_effort"):
                params["config"].setdefault("model_reasoning_effort", config["model_reasoning_effort"])
            return "thread/resume", {**params, "threadId": self.resume.partition(":")[0], "excludeTurns": True}
        if self.app_tools:
            params["dynamicTools"] = _dynamic_tools(self.app_tools)
        # The CLI works in the folder of its process. With the parameter it would add the folder to the user's trusted projects in
        # `config.toml`, if the sandbox lets something be written, and apply the project's settings and rules (0.169.0).
        del params["cwd"]
        if self.grants.runs_unasked:
            # Also reports the items of the model's API. `thread/resume` has no such parameter (0.169.0).
            params["experimentalRawEvents"] = True
        return "thread/start", params

    def refusal(self, policy: Any, sandbox: Any) -> str | None:
        """Why the thread must not be used, given the approval policy and the sandbox that the CLI reports: it would run without
        asking what this session must ask about.

        The CLI replaces what its administrator's requirements (`requirements.toml`) forbid, and reports that when it opens the
        thread and when its settings change (0.169.0).
        """
        asked = self.thread.get("approvalPolicy")
        if asked == "untrusted" and policy is not None and policy != asked:
            return f"it uses the approval policy {policy!r} instead of {asked!r}, with which it would not ask before tools run"
        wanted = str(self.thread.get("sandbox"))
        mode = sandbox.get("type") if isinstance(sandbox, dict) else None
        if mode is not None and WIDTH.get(mode, 2) > WIDTH.get(wanted, 2):
            return f"it uses the sandbox {mode!r} instead of {wanted!r}"
        return None

    def _roots(self, config: dict[str, Any]) -> list[str]:
        """The folders that the sandbox lets be written: the session's, and those of the CLI's own settings.

        A resumed thread keeps its former folders unless the request has others (0.169.0). The settings' `writable_roots` stay
        writable in any case, but the CLI names them to the model only if they are listed here.
        """
        users = (config.get("sandbox_workspace_write") or {}).get("writable_roots") or ()
        return list(dict.fromkeys([self.thread["cwd"], *self.directories, *users]))


def _limits(grants: Grants, servers: Sequence[McpServer]) -> dict[str, Any]:
    """The approval policy and the sandbox of a thread."""
    policy, sandbox = grants.preset
    return {"approvalPolicy": GRANULAR_POLICY if servers and policy == "never" else policy, "sandbox": sandbox}


def _overrides(config: dict[str, Any], servers: Sequence[McpServer]) -> dict[str, Any]:
    """Settings over the CLI's own: no MCP servers but the client's, and a limited number of retries."""
    overrides: dict[str, Any] = {}
    users = config.get("mcp_servers") or {}
    if enabled := {**{name: {"enabled": False} for name in users}, **settings(servers, users)}:
        overrides["mcp_servers"] = enabled
    name, providers = config.get("model_provider"), config.get("model_providers") or {}
    provider = providers.get(name)
    if isinstance(provider, dict):
        unset = {key: value for key, value in RETRIES.items() if provider.get(key) is None}
        if unset:
            overrides["model_providers"] = {name: unset}
    return overrides


def _dynamic_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    names = {name: for_cli for for_cli, name in names_for_cli(tool.name for tool in tools).items()}
    return [
        {"type": "function", "name": names[tool.name], "description": tool.description, "inputSchema": dict(tool.input_schema)}
        for tool in tools
    ]


class Handshake:
    """The requests that open a session.

    Attributes:
        thread_id: The CLI's id of the thread; None until it is open.
        native_id: The native id of the session; None until the thread is open.
        model: The thread's model, where the CLI reports it.
        config: The CLI's own configuration; empty until it is read.
        ready: Whether the thread takes prompts.
        error: Why the CLI does not open the session.
    """

    def __init__(self, rpc: JsonRpcPeer, session: SessionRequest) -> None:
        self._rpc, self._session = rpc, session
        self.thread_id: str | None = None
        self.native_id: str | None = None
        self.model: str | None = None
        self.config: dict[str, Any] = {}
        self.ready = False
        self.error: DriverError | None = None
        if session.resume is not None and not session.resumable:
            self.error = ResumeFailed("the codex thread was started with other application-side tools")
        else:
            rpc.request("initialize", CLIENT, self._initialized)

    def _initialized(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self._failed(error):
            return []
        self._rpc.notify("initialized")
        if not self._session.api_key:
            return self._read_config()
        # Kept in the process' memory only: it runs with `cli_auth_credentials_store="ephemeral"`.
        self._rpc.request("account/login/start", {"type": "apiKey", "apiKey": self._session.api_key}, self._logged_in)
        return []

    def _logged_in(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        return [] if self._failed(error) else self._read_config()

    def _read_config(self) -> list[OutputEvent]:
        self._rpc.request("config/read", {"cwd": self._session.thread["cwd"]}, self._config_read)
        return []

    def _config_read(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if not self._failed(error) and result is not None:
            self.config = result["config"]
            self._rpc.request(*self._session.thread_request(self.config), self._thread_opened)
        return []

    def _thread_opened(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        if self._failed(error) or result is None:
            return []
        if refusal := self._session.refusal(result.get("approvalPolicy"), result.get("sandbox")):
            # Also of a thread that was to be resumed: a new one would have the same.
            self.error = AgentUnavailable(
                f"codex cannot be used for this session: {refusal}. Its requirements.toml may forbid that"
            )
            return []
        thread_id = str(result["thread"]["id"])
        self.thread_id, self.native_id, self.model = thread_id, self._session.native_id(thread_id), result.get("model")
        if self._session.seed and self._session.resume is None:
            params = {"threadId": thread_id, "items": list(self._session.seed)}
            self._rpc.request("thread/inject_items", params, self._seeded)
        else:
            self.ready = True
        return []

    def _seeded(self, result: dict[str, Any] | None, error: RpcError | None) -> list[OutputEvent]:
        self.ready = not self._failed(error)
        return []

    def _failed(self, error: RpcError | None) -> bool:
        if error is not None:
            kind = AgentUnavailable if self._session.resume is None else ResumeFailed
            self.error = kind(f"codex: {error.message}")
        return error is not None

"""The request `initialize` and its answer without the `acp` package, which takes 0.3 s to import.

Protocol page: https://agentclientprotocol.com/protocol/initialization
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator

from drivers.contract.client_services import READ, TERMINAL_METHODS, WRITE
from drivers.contract.driver_info import Login
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.config import Settings
from gateway.protocols.acp.compactions import supports

PROTOCOL_VERSION = 1
"""The only supported version. A client that requested another one decides whether it continues."""
STEERING = "_session/steering"
"""The request that sends a message to a run at work: an extension of `claude-agent-acp` and `codex-acp`."""
LOGIN_ID = "login"
"""The login method that checks whether the agent's program is logged in."""
TERMINAL_LOGIN_META = "terminal-auth"
"""The key in `_meta` by which clients from before the protocol's terminal methods declare them, and get a command."""


def _version(value: Any) -> int:
    # Some clients send a date, such as "2024-11-05" (the acp package maps it to 1 too).
    if isinstance(value, int):
        return value
    try:
        return int(value)
    except (TypeError, ValueError):
        return 1


def _default(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Return the validated value; None if it is invalid, as the protocol's schema demands ("x-deserialize-default-on-error")."""
    try:
        return validate(value)
    except ValidationError:
        return None


class _Model(BaseModel):
    model_config = ConfigDict(populate_by_name=True, defer_build=True)


_Flag = Annotated[bool | None, WrapValidator(_default)]


class _Files(_Model):
    read_text_file: _Flag = Field(default=None, alias="readTextFile")
    write_text_file: _Flag = Field(default=None, alias="writeTextFile")


class _Elicitation(_Model):
    form: Annotated[dict[str, Any] | None, WrapValidator(_default)] = None


class _Meta(_Model):
    terminal_output: _Flag = None
    terminal_output_delta: _Flag = None
    terminal_login: _Flag = Field(default=None, alias=TERMINAL_LOGIN_META)


class _Login(_Model):
    terminal: _Flag = None


class _ClientCapabilities(_Model):
    elicitation: Annotated[_Elicitation | None, WrapValidator(_default)] = None
    fs: Annotated[_Files | None, WrapValidator(_default)] = None
    terminal: _Flag = None
    auth: Annotated[_Login | None, WrapValidator(_default)] = None
    meta: Annotated[_Meta | None, WrapValidator(_default)] = Field(default=None, alias="_meta")


class InitializeRequest(_Model):
    """The parameters of `initialize`. What is invalid in the capabilities counts as not supported."""

    protocol_version: Annotated[int, BeforeValidator(_version)] = Field(alias="protocolVersion", ge=0, le=65535)
    client_capabilities: Annotated[_ClientCapabilities | None, WrapValidator(_default)] = Field(
        default=None, alias="clientCapabilities"
    )


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """What a client supports: the methods that it serves for agents, updates about compactions and notices, forms for questions,
    and the output of commands as that of a terminal, by the member of `_meta` that has it (None: not supported). And login
    methods that it runs in a terminal, as the protocol has them (`terminal_logins`) or by a command in `_meta`
    (`terminal_commands`)."""

    methods: frozenset[str] = frozenset()
    compactions: bool = False
    forms: bool = False
    terminal_output: str | None = None
    terminal_logins: bool = False
    terminal_commands: bool = False
    notices: bool = False


def client_features(params: Any) -> ClientFeatures:
    """Return the features of a client, from the parameters of `initialize`. Raises pydantic.ValidationError."""
    capabilities = InitializeRequest.model_validate(params).client_capabilities
    fs = capabilities.fs if capabilities else None
    files = [method for method, supported in ((READ, fs and fs.read_text_file), (WRITE, fs and fs.write_text_file)) if supported]
    terminals = TERMINAL_METHODS if capabilities and capabilities.terminal else ()
    elicitation = capabilities.elicitation if capabilities else None
    forms = elicitation is not None and elicitation.form is not None
    meta = capabilities.meta if capabilities else None
    return ClientFeatures(
        frozenset([*files, *terminals]),
        supports(params, "compaction"),
        forms,
        _output_member(meta),
        notices=supports(params, "notices"),
        terminal_logins=bool(capabilities and capabilities.auth and capabilities.auth.terminal),
        terminal_commands=bool(meta and meta.terminal_login),
    )


def _output_member(meta: _Meta | None) -> str | None:
    """The member of `_meta` in which the client gets the output of a command. The vendors' adapters use the same (Zed's
    convention)."""
    if meta is None:
        return None
    # A client that declares both appends what has the longer name.
    return "terminal_output_delta" if meta.terminal_output_delta else "terminal_output" if meta.terminal_output else None


def acp_command(agent_name: str, settings: Settings) -> tuple[str, ...]:
    """Return the command line of `portico acp` for an agent, with the configuration that the settings are from."""
    config = () if settings.file is None else ("--config", str(settings.file))
    # -P: the editor runs it in the folder of a project, which is not searched for modules.
    return (sys.executable, "-P", "-m", "gateway", "acp", *config, agent_name)


def has_login(agent: ConfiguredAgent) -> bool:
    """Whether clients can require a login of the agent: it has a program of its own."""
    return agent.info.program.name is not None


def login_methods(
    agent: ConfiguredAgent, features: ClientFeatures = ClientFeatures(), command: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return the login methods of an agent for a client. `command` is as in `initialize_response`."""
    if not has_login(agent):
        return []
    how = f"Run `{found}` in a terminal on" if (found := agent.login_command()) else "Log in with the agent's own program on"
    check = {
        "id": LOGIN_ID,
        "name": "The agent's own login",
        "description": f"{how} the machine of the gateway, then choose this.",
    }
    if command is None or not (features.terminal_logins or features.terminal_commands):
        return [check]
    return [*(_terminal_method(agent, login, features, command) for login in agent.info.program.logins), check]


def _terminal_method(agent: ConfiguredAgent, login: Login, features: ClientFeatures, command: Sequence[str]) -> dict[str, Any]:
    arguments = [f"--login={login.id}"]
    text = f"Run `{shlex.join([agent.info.program.name or agent.name, *login.arguments])}` in a terminal."
    method: dict[str, Any] = {"id": login.id, "name": login.name, "description": text, "type": "terminal", "args": arguments}
    if features.terminal_commands:
        started = {"command": command[0], "args": [*command[1:], *arguments], "label": f"{agent.info.title} login"}
        method["_meta"] = {TERMINAL_LOGIN_META: started}
    return method


def initialize_response(
    agent: ConfiguredAgent,
    version: str | None,
    features: ClientFeatures = ClientFeatures(),
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the answer for an agent whose program has this version; None if it is not known yet.

    `command` is that of `portico acp` for this agent, if the client has started one on the machine of the gateway: only then
    can it run the login methods for a terminal.
    """
    info, login = agent.info, has_login(agent)
    transports = info.mcp.transports if agent.settings.mcp != "none" else frozenset()
    sessions = ["list", "delete", *(["additionalDirectories"] if info.capabilities.additional_directories else [])]
    sessions += [*(["fork"] if agent.info.capabilities.seeds else []), "resume", "close"]
    title = agent.settings.title or info.title
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": info.capabilities.image_data, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": "http" in transports, "sse": "sse" in transports, "acp": False},
            "sessionCapabilities": {
                **{name: {} for name in (*sessions, "title", "status")},
                **({"systemPrompt": {"mode": {"override": {}}}} if info.capabilities.system else {}),
            },
            "auth": {"logout": {}} if login else {},
            # Clients look for it under this name, whichever agent it is. Without it they hold prompts themselves, or send none.
            "_meta": {"claudeCode": {"promptQueueing": True}},
        },
        "authMethods": login_methods(agent, features, command),
        "agentInfo": {"name": agent.name, "title": title, "version": version or "unknown"},
        **({"_meta": {"steering": {"supported": True}}} if info.capabilities.steers else {}),
    }

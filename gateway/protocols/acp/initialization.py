"""The request `initialize` and its answer without the `acp` package, which takes 0.3 s to import.

Protocol page: https://agentclientprotocol.com/protocol/initialization
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator

from drivers.contract.client_services import READ, TERMINAL_METHODS, WRITE
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.protocols.acp.compactions import supports_compactions

PROTOCOL_VERSION = 1
"""The only supported version. A client that requested another one decides whether it continues."""
LOGIN_ID = "login"
LOGIN = {
    "id": LOGIN_ID,
    "name": "The agent's own login",
    "description": "Log in with the agent's own program on the machine of the gateway, then choose this.",
}


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
    model_config = ConfigDict(populate_by_name=True)


_Flag = Annotated[bool | None, WrapValidator(_default)]


class _Files(_Model):
    read_text_file: _Flag = Field(default=None, alias="readTextFile")
    write_text_file: _Flag = Field(default=None, alias="writeTextFile")


class _ClientCapabilities(_Model):
    fs: Annotated[_Files | None, WrapValidator(_default)] = None
    terminal: _Flag = None


class InitializeRequest(_Model):
    """The parameters of `initialize`. What is invalid in the capabilities counts as not supported."""

    protocol_version: Annotated[int, BeforeValidator(_version)] = Field(alias="protocolVersion", ge=0, le=65535)
    client_capabilities: Annotated[_ClientCapabilities | None, WrapValidator(_default)] = Field(
        default=None, alias="clientCapabilities"
    )


@dataclass(frozen=True, slots=True)
class ClientFeatures:
    """What a client supports: the methods that it serves for agents, and updates about compactions."""

    methods: frozenset[str] = frozenset()
    compactions: bool = False


def client_features(params: Any) -> ClientFeatures:
    """Return the features of a client, from the parameters of `initialize`. Raises pydantic.ValidationError."""
    capabilities = InitializeRequest.model_validate(params).client_capabilities
    fs = capabilities.fs if capabilities else None
    files = [method for method, supported in ((READ, fs and fs.read_text_file), (WRITE, fs and fs.write_text_file)) if supported]
    terminals = TERMINAL_METHODS if capabilities and capabilities.terminal else ()
    return ClientFeatures(frozenset([*files, *terminals]), supports_compactions(params))


def has_login(agent: ConfiguredAgent) -> bool:
    """Whether clients can require a login of the agent: it has a program of its own."""
    return agent.info.program is not None


def initialize_response(agent: ConfiguredAgent, version: str | None) -> dict[str, Any]:
    """Return the answer for an agent whose program has this version."""
    info, login = agent.info, has_login(agent)
    transports = info.mcp if agent.settings.mcp != "none" else frozenset()
    sessions = ["list", "delete", *(["additionalDirectories"] if info.additional_directories else [])]
    sessions += [*(["fork"] if info.seeds else []), "resume", "close"]
    title = agent.settings.title or info.title
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": info.image_data, "audio": False, "embeddedContext": True},
            "mcpCapabilities": {"http": "http" in transports, "sse": "sse" in transports, "acp": False},
            "sessionCapabilities": {name: {} for name in sessions},
            "auth": {"logout": {}} if login else {},
        },
        "authMethods": [LOGIN] if login else [],
        "agentInfo": {"name": agent.name, "title": title, **({} if version is None else {"version": version})},
    }

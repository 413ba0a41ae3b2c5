"""AgentInfo: the description of an agent in `/meta`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.events.messages import EXTENSIONS
from gateway.protocols.aap.schema import ApplicationTool, OmitIfNone, WireModel


class SupportedCapability(WireModel):
    """A supported capability: an empty object. Absent if it is not supported."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class HistoryCapability(WireModel):
    compacted: OmitIfNone[SupportedCapability] = None
    full: OmitIfNone[SupportedCapability] = None


class StreamCapability(WireModel):
    delta: OmitIfNone[SupportedCapability] = None
    message: OmitIfNone[SupportedCapability] = None
    none: OmitIfNone[SupportedCapability] = None


class ApplicationCapability(WireModel):
    tools: OmitIfNone[SupportedCapability] = None


class ImageCapability(WireModel):
    http: OmitIfNone[SupportedCapability] = None
    data: OmitIfNone[SupportedCapability] = None


class ExtensionCapability(WireModel):
    """Extensions of the gateway beyond the protocol."""

    cancel: OmitIfNone[SupportedCapability] = None
    events: OmitIfNone[SupportedCapability] = None
    queue: OmitIfNone[SupportedCapability] = None
    steer: OmitIfNone[SupportedCapability] = None


class Capabilities(WireModel):
    """A missing capability is not supported."""

    history: OmitIfNone[HistoryCapability] = None
    stream: OmitIfNone[StreamCapability] = None
    application: OmitIfNone[ApplicationCapability] = None
    image: OmitIfNone[ImageCapability] = None
    own: OmitIfNone[ExtensionCapability] = Field(default=None, alias=EXTENSIONS)


class _Option(WireModel):
    name: str
    title: OmitIfNone[str] = None
    description: OmitIfNone[str] = None
    default: str


class TextOption(_Option):
    type: Literal["text"]


class SecretOption(_Option):
    """A value that no response contains. `default` is `***` if the configuration has one."""

    type: Literal["secret"]


class SelectOption(_Option):
    type: Literal["select"]
    options: list[str]


AgentOption = Annotated[TextOption | SecretOption | SelectOption, Field(discriminator="type")]


ECHO: dict[str, Any] = {
    "name": "echo",
    "title": "Echo",
    "version": "1.0.0",
    "description": "Repeats each prompt; for tests and first steps.",
    "tools": [],
    "options": [{"type": "text", "name": "cwd", "title": "Working folder", "description": "", "default": ""}],
    "capabilities": {"history": {"full": {}}, "stream": {"delta": {}, "message": {}, "none": {}}},
}
"""An agent in examples."""


class AgentBase(WireModel):
    """An agent. Each version of the protocol adds `tools`."""

    name: str
    title: OmitIfNone[str] = None
    version: str
    description: OmitIfNone[str] = None
    options: list[AgentOption]
    capabilities: Capabilities


class AgentInfo(AgentBase):
    """An agent as of versions 1 and 2."""

    tools: list[ApplicationTool]


class MetaResponse(WireModel):
    """`GET /meta` of versions 1 and 2."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"version": 1, "agents": [ECHO]}, {"version": 2, "agents": [ECHO]}]}
    )

    version: int
    agents: list[AgentInfo]

"""AgentInfo: what `/meta` says of an agent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.protocols.aap.schema import ApplicationTool, OmitIfNone, WireModel


class Declared(WireModel):
    """Something that the agent can do: the object is there, and empty."""

    model_config = ConfigDict(extra="forbid")


class HistoryCapability(WireModel):
    compacted: OmitIfNone[Declared] = None
    full: OmitIfNone[Declared] = None


class StreamCapability(WireModel):
    delta: OmitIfNone[Declared] = None
    message: OmitIfNone[Declared] = None
    none: OmitIfNone[Declared] = None


class ApplicationCapability(WireModel):
    tools: OmitIfNone[Declared] = None


class ImageCapability(WireModel):
    http: OmitIfNone[Declared] = None
    data: OmitIfNone[Declared] = None


class OwnCapability(WireModel):
    """What the gateway does beyond the protocol."""

    cancel: OmitIfNone[Declared] = None
    events: OmitIfNone[Declared] = None
    queue: OmitIfNone[Declared] = None
    steer: OmitIfNone[Declared] = None


class Capabilities(WireModel):
    """What is missing is not supported."""

    history: OmitIfNone[HistoryCapability] = None
    stream: OmitIfNone[StreamCapability] = None
    application: OmitIfNone[ApplicationCapability] = None
    image: OmitIfNone[ImageCapability] = None
    own: OmitIfNone[OwnCapability] = Field(default=None, alias="x-portico")


class _Option(WireModel):
    name: str
    title: OmitIfNone[str] = None
    description: OmitIfNone[str] = None
    default: str


class TextOption(_Option):
    type: Literal["text"]


class SecretOption(_Option):
    """A value that is never shown again; `default` is `***` where the configuration has one."""

    type: Literal["secret"]


class SelectOption(_Option):
    type: Literal["select"]
    options: list[str]


AgentOption = Annotated[TextOption | SecretOption | SelectOption, Field(discriminator="type")]


class AgentBase(WireModel):
    """An agent. Each version adds `tools`."""

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

    version: int
    agents: list[AgentInfo]

"""AgentInfo: what `/meta` says of an agent."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.protocols.aap.schema import ApplicationTool, Maybe, Shape


class Declared(Shape):
    """Something that the agent can do: the object is there, and empty."""

    model_config = ConfigDict(extra="forbid")


class HistoryCapability(Shape):
    compacted: Maybe[Declared] = None
    full: Maybe[Declared] = None


class StreamCapability(Shape):
    delta: Maybe[Declared] = None
    message: Maybe[Declared] = None
    none: Maybe[Declared] = None


class ApplicationCapability(Shape):
    tools: Maybe[Declared] = None


class ImageCapability(Shape):
    http: Maybe[Declared] = None
    data: Maybe[Declared] = None


class OwnCapability(Shape):
    """What the gateway does beyond the protocol."""

    cancel: Maybe[Declared] = None
    events: Maybe[Declared] = None
    queue: Maybe[Declared] = None
    steer: Maybe[Declared] = None


class Capabilities(Shape):
    """What is missing is not supported."""

    history: Maybe[HistoryCapability] = None
    stream: Maybe[StreamCapability] = None
    application: Maybe[ApplicationCapability] = None
    image: Maybe[ImageCapability] = None
    own: Maybe[OwnCapability] = Field(default=None, alias="x-portico")


class _Option(Shape):
    name: str
    title: Maybe[str] = None
    description: Maybe[str] = None
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


class Described(Shape):
    """An agent. Each version adds `tools`."""

    name: str
    title: Maybe[str] = None
    version: str
    description: Maybe[str] = None
    options: list[AgentOption]
    capabilities: Capabilities


class AgentInfo(Described):
    """An agent as of versions 1 and 2."""

    tools: list[ApplicationTool]


class MetaResponse(Shape):
    """`GET /meta` of versions 1 and 2."""

    version: int
    agents: list[AgentInfo]

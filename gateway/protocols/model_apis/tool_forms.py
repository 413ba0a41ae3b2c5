"""The tools of a request of `/v1/responses`: functions, tools with free text as their input, and those of a namespace. Pure.

An agent has functions only. Free text is the argument `input` of one. A tool of a namespace has the name of that before its own.
In the items that a client sends and gets, each tool has the form that the client has described.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drivers.contract.driver_info import ToolSpec
from gateway.errors import BadRequest
from gateway.protocols.model_apis.answer import Call

Json = Mapping[str, Any]
_NO_PARAMETERS: Json = {"type": "object", "properties": {}}
_FIELDS: Mapping[str, frozenset[str]] = {
    "function": frozenset(("type", "name", "description", "parameters", "strict")),
    "custom": frozenset(("type", "name", "description", "format")),
    "namespace": frozenset(("type", "name", "description", "tools")),
}


@dataclass(frozen=True, slots=True)
class ToolForm:
    """A tool as its client has described it."""

    given: Json
    namespace: str | None
    where: str

    @property
    def name(self) -> str:
        name = self.given.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"{self.where}.name: must be a text that is not empty")
        return name

    @property
    def agent_name(self) -> str:
        """The name that the agent has for it."""
        return agent_name_of(self.name, self.namespace)

    @property
    def is_custom(self) -> bool:
        """Whether its input is free text."""
        return bool(self.given["type"] == "custom")

    def spec(self) -> ToolSpec:
        description, schema = self.given.get("description"), self.given.get("parameters")
        if description is not None and not isinstance(description, str):
            raise BadRequest(f"{self.where}.description: must be a string")
        if schema is not None and not isinstance(schema, Mapping):
            raise BadRequest(f"{self.where}.parameters: must be a JSON schema")
        if self.is_custom:
            return ToolSpec(self.agent_name, description or "", self._text_schema())
        return ToolSpec(self.agent_name, description or "", schema or _NO_PARAMETERS)

    def _text_schema(self) -> dict[str, Any]:
        form = self.given.get("format")
        member: dict[str, Any] = {"type": "string"}
        if isinstance(form, Mapping) and isinstance(form.get("definition"), str):
            member["description"] = f"Text of this grammar ({form.get('syntax')}):\n{form['definition']}"
        return {"type": "object", "properties": {"input": member}, "required": ["input"]}

    def item(self, call: Call) -> dict[str, Any]:
        """A call as the members of an item, with all of its input."""
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"type": self.kind, "call_id": call.id, "name": self.name, **namespace, self.member: self.input_of(call)}

    @property
    def kind(self) -> str:
        return "custom_tool_call" if self.is_custom else "function_call"

    @property
    def member(self) -> str:
        """The member of an item that has the input."""
        return "input" if self.is_custom else "arguments"

    def input_of(self, call: Call) -> str:
        text = call.input.get("input")
        return text if self.is_custom and isinstance(text, str) else call.arguments


def agent_name_of(name: str, namespace: str | None) -> str:
    """Return the name that an agent has for a tool of a namespace."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def tool_forms(tools: Iterable[Json], where: str = "tools", namespace: str | None = None) -> Iterator[ToolForm | tuple[str, str]]:
    """Return the tools that the client runs; and of those that it does not run their type and name, which have no effect."""
    for n, tool in enumerate(tools):
        at, kind = f"{where}.{n}", tool.get("type")
        if not isinstance(kind, str):
            raise BadRequest(f"{at}.type: missing; send function, custom or namespace")
        if kind == "namespace" and namespace is None:
            name, inner = tool.get("name"), tool.get("tools")
            if not isinstance(name, str) or not name:
                raise BadRequest(f"{at}.name: must be a text that is not empty")
            if not isinstance(inner, list) or not all(isinstance(one, Mapping) for one in inner):
                raise BadRequest(f"{at}.tools: must be a list of tools")
            yield from tool_forms(inner, f"{at}.tools", name)
        elif kind in ("function", "custom"):
            yield ToolForm(tool, namespace, at)
        else:
            yield kind, str(tool.get("name", kind))


def unread_fields(tool: Json) -> list[str]:
    """Return the fields of a tool that have no effect."""
    known = _FIELDS.get(str(tool.get("type")), frozenset())
    return [name for name, value in tool.items() if value is not None and name not in known]

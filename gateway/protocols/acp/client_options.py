"""Reads what `_meta` of `session/new` sets: `systemPrompt` and `claudeCode.options`, as the vendor's adapter. Does no I/O.

Only options that cannot widen what the agent may do are read; docs/security.md lists them. All others are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from drivers.contract.driver_info import EFFORT_OPTION
from drivers.contract.messages import SystemMessage
from gateway.agents.configured_agents import ConfiguredAgent
from gateway.errors import BadRequest
from gateway.sessions.settings import SessionSettings

SYSTEM_PROMPT = "system_prompt"
TEXT_OPTIONS = {"model": "model", "effort": EFFORT_OPTION}
"""The options that are read as options of the agent."""


def with_system_prompt(meta: Mapping[str, Any] | None, prompt: Any) -> Mapping[str, Any] | None:
    """Return `_meta` with the `systemPrompt` of the request, in the form of `_meta`. Raises BadRequest for a malformed one."""
    if prompt is None:
        return meta
    mode = prompt.get("mode") if isinstance(prompt, dict) else None
    if mode not in ("append", "override"):
        raise BadRequest("systemPrompt.mode: must be 'append' or 'override'")
    content = prompt.get("content", prompt.get("text"))
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if isinstance(block, dict) and block.get("type") == "text" else block for block in blocks]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest("systemPrompt.content: must be a text, or blocks of the type text")
    text = "\n\n".join(map(str, texts))
    return {**(meta or {}), "systemPrompt": text if mode == "override" else {"append": text}}


def system_messages(agent: ConfiguredAgent, meta: Mapping[str, Any] | None) -> list[SystemMessage]:
    """Return the system prompt as the first message of a session. Raises BadRequest for a malformed one."""
    prompt = (meta or {}).get("systemPrompt")
    text = prompt.get("append") if isinstance(prompt, dict) else prompt
    if text is None:
        return []
    if not isinstance(text, str):
        raise BadRequest("_meta.systemPrompt: must be a text, which replaces the agent's own prompt, or {append: TEXT}")
    if not agent.info.capabilities.system:
        raise BadRequest(f"_meta.systemPrompt: agent {agent.name!r} takes no system prompt")
    return [SystemMessage(content=text)] if text else []


def with_client_options(agent: ConfiguredAgent, settings: SessionSettings, meta: Mapping[str, Any] | None) -> SessionSettings:
    """Return the settings with the options of `_meta`. Raises BadRequest for a malformed one, and Forbidden for a locked one."""
    values: dict[str, str] = {}
    if isinstance((meta or {}).get("systemPrompt"), str):
        values[SYSTEM_PROMPT] = "replace"
    claude = (meta or {}).get("claudeCode") if agent.settings.driver == "claude" else None
    options = claude.get("options") if isinstance(claude, dict) else None
    if isinstance(options, dict):
        values |= {name: _text(options[given], given) for given, name in TEXT_OPTIONS.items() if options.get(given) is not None}
        settings = _with_fewer_tools(settings, options)
    known = {option.name for option in agent.options}
    values = {name: value for name, value in values.items() if name in known}
    agent.check_locked(values)
    agent.check_values(values)
    return replace(settings, options={**settings.options, **values})


def _with_fewer_tools(settings: SessionSettings, options: Mapping[str, Any]) -> SessionSettings:
    tools = settings.tools or ()
    if isinstance(options.get("tools"), list):
        listed = _names(options["tools"], "tools")
        tools = tuple(grant for grant in tools if grant.name in listed)
    if options.get("disallowedTools") is not None:
        disallowed = _names(options["disallowedTools"], "disallowedTools")
        tools = tuple(grant for grant in tools if grant.name not in disallowed)
    return replace(settings, tools=tools)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadRequest(f"_meta.claudeCode.options.{name}: must be a text")
    return value


def _names(value: Any, name: str) -> set[str]:
    if not isinstance(value, list) or not all(isinstance(tool, str) for tool in value):
        raise BadRequest(f"_meta.claudeCode.options.{name}: must be a list of names of tools")
    if rules := [tool for tool in value if "(" in tool]:
        # The whole tool would be meant, or none of it.
        raise BadRequest(f"_meta.claudeCode.options.{name}: {rules[0]!r} is a rule; only names of tools are supported here")
    return set(value)

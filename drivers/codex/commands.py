"""The slash commands of codex: `/compact`, for which `codex app-server` has a method, and the skills that it lists. No state.

The app-server takes a `/` for text (0.169.0), so a command is recognized here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drivers.contract.events import SlashCommand
from drivers.contract.messages import Content, TextBlock, blocks

COMPACT = SlashCommand(name="compact", description="Replace the conversation by a summary, to free the model's context.")


def is_compact(content: Content) -> bool:
    """Whether a prompt is the command `/compact`."""
    first = next(iter(blocks(content)), None)
    return isinstance(first, TextBlock) and first.text.partition(" ")[0].strip() == f"/{COMPACT.name}"


def with_skill(content: Content) -> Content:
    """A prompt that begins with the command of a skill, `/$NAME`, as the CLI names the skill in a text; any other as it is."""
    first, *rest = blocks(content) or (None,)
    if not isinstance(first, TextBlock) or not first.text.startswith("/$") or not first.text[2:].partition(" ")[0].strip():
        return content
    return (TextBlock(text=first.text[1:]), *rest)


def commands_of(skills: Any) -> tuple[SlashCommand, ...]:
    """All commands, given the result of `skills/list`."""
    return (COMPACT, *(SlashCommand(name=f"${name}", description=text) for name, text in _skills(skills).items()))


def _skills(skills: Any) -> dict[str, str]:
    """The descriptions of all enabled skills, by name."""
    entries = skills.get("data") if isinstance(skills, dict) else None
    return {
        skill["name"]: _description(skill)
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("skills"), list)
        for skill in entry["skills"]
        if isinstance(skill, dict) and isinstance(skill.get("name"), str) and skill["name"] and skill.get("enabled") is not False
    }


def _description(skill: Mapping[str, Any]) -> str:
    interface = skill.get("interface")
    short = interface.get("shortDescription") if isinstance(interface, dict) else None
    return str(short or skill.get("shortDescription") or skill.get("description") or "")

"""The slash commands of codex: those that `codex app-server` has a method for, its state as text, reviews, and skills. No state.

The app-server takes a `/` for text (0.169.0), so a command is recognized here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drivers.contract.events import SlashCommand
from drivers.contract.messages import Content, TextBlock, blocks

REVIEW_SKILL = "review-agent"
"""The CLI's own skill for reviews. The method `review/start` is not used: it runs commands and patches without an approval,
whatever the policy of the thread is (measured, 0.169.0)."""
COMPACT = SlashCommand(name="compact", description="Replace the conversation by a summary, to free the model's context.")
RENAME = SlashCommand(name="rename", description="Set the title of the session.", hint="title")
PLAN = SlashCommand(name="plan", description="Switch to plan mode, or back, or plan what is described.", hint="what to plan")
STATUS = SlashCommand(name="status", description="Display the model, the mode, the sandbox, and the tokens that were used.")
MCP = SlashCommand(name="mcp", description="List the MCP servers of the session with their tools.")
SKILLS = SlashCommand(name="skills", description="List the skills.")
_OWN = {command.name: command for command in (COMPACT, PLAN, STATUS, MCP, SKILLS, RENAME)}
_REVIEWS: Mapping[str, tuple[SlashCommand, Callable[[str], str]]] = {
    command.name: (command, text)
    for command, text in (
        (
            SlashCommand(
                name="review",
                description="Review the changes that are not committed, or what is described.",
                hint="what to review, if not the changes",
            ),
            lambda rest: rest or "Review the current changes: staged, unstaged and untracked files.",
        ),
        (
            SlashCommand(name="review-branch", description="Review the changes since another branch.", hint="branch"),
            lambda rest: f"Review the changes of the current branch since it left the branch {rest}.",
        ),
        (
            SlashCommand(name="review-commit", description="Review the changes of a commit.", hint="commit"),
            lambda rest: f"Review the changes of the commit {rest}.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class CommandPrompt:
    """A prompt that begins with a slash command: its name, and the text behind it."""

    name: str
    rest: str

    @property
    def needs_argument(self) -> str | None:
        """What is missing behind the name; None if nothing is."""
        command = RENAME if self.name == RENAME.name else _REVIEWS[self.name][0] if self.name in _REVIEWS else None
        return command.hint if command is not None and command.name != "review" and not self.rest else None

    @property
    def text(self) -> str | None:
        """The text for the model; None for a command that the app-server has a method for."""
        if self.name in _REVIEWS:
            return f"${REVIEW_SKILL} {_REVIEWS[self.name][1](self.rest)}"
        return f"{self.name} {self.rest}".rstrip() if self.name.startswith("$") else None


def command_of(content: Content) -> CommandPrompt | None:
    """The command that a prompt begins with; None for any other text, also one that begins with a `/`."""
    first = next(iter(blocks(content)), None)
    if not isinstance(first, TextBlock) or not first.text.startswith("/"):
        return None
    name, _, rest = first.text[1:].partition(" ")
    name = name.strip()
    known = name in _OWN or name in _REVIEWS or (name.startswith("$") and len(name) > 1)
    return CommandPrompt(name, " ".join(rest.split()) if name == RENAME.name else rest.strip()) if known else None


def commands_of(skills: Any) -> tuple[SlashCommand, ...]:
    """All commands, given the result of `skills/list`. A skill is `$NAME`, as the CLI names it in a text."""
    found = _skills(skills)
    reviews = [command for command, _ in _REVIEWS.values()] if REVIEW_SKILL in found else []
    listed = [SlashCommand(name=f"${name}", description=description) for name, description in found.items()]
    return (COMPACT, PLAN, *reviews, STATUS, MCP, SKILLS, RENAME, *listed)


def skills_text(skills: Any) -> str:
    """The answer to `/skills`, in Markdown, given the result of `skills/list`."""
    lines = [f"- `${name}`: {description}".removesuffix(": ") for name, description in _skills(skills).items()]
    return "\n".join(lines) or "There are no skills."


def servers_text(status: Any) -> str:
    """The answer to `/mcp`, in Markdown, given the result of `mcpServerStatus/list`: servers of the session, with their tools."""
    servers = status.get("data") if isinstance(status, dict) else None
    lines = [
        _server_line(server)
        for server in (servers if isinstance(servers, list) else ())
        if isinstance(server, dict) and server.get("runtimeStatus") != "disabled"
    ]
    return "\n".join(lines) or "There are no MCP servers."


def _server_line(server: Mapping[str, Any]) -> str:
    name, error, tools = server.get("name"), server.get("toolsError"), server.get("tools")
    if error:
        return f"- {name}: {error}"
    return f"- {name}: {', '.join(sorted(tools)) if isinstance(tools, dict) and tools else 'no tools'}"


def status_text(facts: Mapping[str, str | None], account: Any) -> str:
    """The answer to `/status`, in Markdown: the facts of the session by their names, and the kind of `account`.

    `account` is the result of `account/read`. Its address is left out: the client of the session need not be its owner.
    """
    found = account.get("account") if isinstance(account, dict) else None
    kind = str(found.get("type")) if isinstance(found, dict) else "none"
    shown = {**facts, "Account": {"apiKey": "API key", "chatgpt": "ChatGPT"}.get(kind, kind)}
    return "  \n".join(f"**{name}:** {value}" for name, value in shown.items() if value)


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

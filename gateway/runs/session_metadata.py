"""What an agent reports about its session beside its messages: slash commands and a title. Stored with the session."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.contract.events import Commands, Event, SlashCommand, Title, decode
from drivers.contract.messages import MESSAGE, Content, UserMessage, text_of
from gateway.store import SessionListRow, Store

METADATA_EVENTS: frozenset[type[Event]] = frozenset((Commands, Title))
"""The events that report it."""
MAX_TITLE_LENGTH = 200
"""In characters."""
MAX_PROMPT_TITLE = 80
"""Characters of a title made from the first prompt."""


@dataclass(frozen=True, slots=True)
class SessionMetadata:
    """Title and slash commands. None is what the agent has not reported. `chosen_title` is the user's."""

    title: str | None = None
    commands: tuple[SlashCommand, ...] | None = None
    chosen_title: str | None = None


async def stored_metadata(store: Store, session_id: str) -> SessionMetadata:
    """Returns what the store has of a session."""
    record = await store.session_metadata.get(session_id)
    event = decode(record.commands) if record.commands else None
    return SessionMetadata(record.title, event.commands if isinstance(event, Commands) else None, record.chosen_title)


async def store_metadata(store: Store, session_id: str, event: Commands | Title) -> bool:
    """Stores what an event reports; returns False if it is stored already. Stores nothing for the log of a task."""
    known = await stored_metadata(store, session_id)
    if isinstance(event, Commands):
        if event.commands == known.commands:
            return False
        await store.session_metadata.update(session_id, commands=event.encode().decode())
        return True
    title = title_line(event)
    if title == known.title:
        return False
    await store.session_metadata.update(session_id, title=title)
    return True


def title_line(event: Title) -> str | None:
    """Returns the title on one line, of MAX_TITLE_LENGTH at most; None if it is empty."""
    return one_line(event.text or "")


def one_line(title: str) -> str | None:
    """Returns a title on one line, of MAX_TITLE_LENGTH at most; None if it is empty."""
    return " ".join(title.split())[:MAX_TITLE_LENGTH] or None


def title_of_prompt(content: Content) -> str | None:
    """Returns the beginning of a prompt as a title, for a session whose agent reports none. None if the prompt has no text."""
    line = " ".join(text_of(content).split())
    return (line if len(line) <= MAX_PROMPT_TITLE else line[: MAX_PROMPT_TITLE - 1] + "…") or None


def displayed_title(row: SessionListRow) -> str | None:
    """Returns the title of a session in a list: the user's, the agent's, or one of the first prompt. None without these."""
    first = MESSAGE.validate_json(row.first_user_message) if row.first_user_message else None
    return row.title or (title_of_prompt(first.content) if isinstance(first, UserMessage) else None)

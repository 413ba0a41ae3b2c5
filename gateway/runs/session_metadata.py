"""What an agent has told of a session beside its messages: its slash commands and its title, kept with the session."""

from __future__ import annotations

from dataclasses import dataclass

from drivers.contract.events import Commands, Event, SlashCommand, Title, decode
from gateway.store import Store

NOTED: frozenset[type[Event]] = frozenset((Commands, Title))
"""The events that tell it."""
TITLE_AT_MOST = 200


@dataclass(frozen=True, slots=True)
class Notes:
    """None is what the agent has not told."""

    title: str | None = None
    commands: tuple[SlashCommand, ...] | None = None


async def notes_of(store: Store, session_id: str) -> Notes:
    """What is known of a session."""
    title, told = await store.notes(session_id)
    event = decode(told) if told else None
    return Notes(title, event.commands if isinstance(event, Commands) else None)


async def note(store: Store, session_id: str, event: Commands | Title) -> bool:
    """Keep it; False if it was known already. For a log that is no session's nothing is kept."""
    known = await notes_of(store, session_id)
    if isinstance(event, Commands):
        if event.commands == known.commands:
            return False
        await store.note(session_id, commands=event.encode().decode())
        return True
    title = title_in(event)
    if title == known.title:
        return False
    await store.note(session_id, title=title)
    return True


def title_in(event: Title) -> str | None:
    """The title on one line."""
    return " ".join((event.text or "").split())[:TITLE_AT_MOST] or None

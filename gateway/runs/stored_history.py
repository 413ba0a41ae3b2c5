"""StoredHistory: reads the messages of a session in pages, so that the memory it takes does not grow with the history.

It does not write: messages are stored with the events that complete them (gateway/events/event_log.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from drivers.contract.messages import (
    MESSAGE,
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
)
from gateway.errors import NotFound
from gateway.events.messages import failure_message, is_failure_message, is_kept
from gateway.store import Store

MAX_SEED = 16 * 1024 * 1024
"""Characters, as JSON, of the newest messages that an agent is seeded with; more than any model reads."""
OMITTED = (
    "[The first {count} messages of this conversation are omitted: it is longer than the {size} MiB that an agent is given.]"
)


class StoredHistory:
    """The messages of one session. All methods see the messages that are stored when they are called."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store, self._session_id = store, session_id

    async def count(self) -> int:
        """How many messages there are."""
        return await self._store.messages.count(self._session_id)

    async def messages(self, first: int = 0, end: int | None = None) -> AsyncIterator[Message]:
        """Yields the messages at the positions from `first` to before `end` (None: all), without those that the agent's CLI has
        not kept. Raises NotFound if they are deleted."""
        end = await self.count() if end is None else end
        while first < end:
            page = await self._store.messages.page(self._session_id, first, end)
            if not page:
                raise NotFound(f"session {self._session_id!r} was deleted")
            first += len(page)
            for body in page:
                if is_kept(message := MESSAGE.validate_json(body)):
                    yield message

    async def count_until(self, seq: int) -> int:
        """How many messages are complete with the event of this number."""
        return await self._store.messages.count_until(self._session_id, seq)

    async def until(self, seq: int) -> AsyncIterator[Message]:
        """Yields the messages that are complete with the event of this number."""
        async for message in self.messages(0, await self.count_until(seq)):
            yield message

    async def with_failures(self) -> AsyncIterator[Message]:
        """Yields all messages, and for each failed turn without text the reason, as an assistant message (`failure_message`)."""
        first = 0
        for position, reason in await self._store.failures.without_text(self._session_id):
            async for message in self.messages(first, position):
                yield message
            yield failure_message(reason)
            first = position
        async for message in self.messages(first):
            yield message

    async def compacted(self) -> AsyncIterator[Message]:
        """Yields what the agent still works from: all messages, or what its CLI has left of them and what came after.

        The summary of a compaction is a user message, as in the CLI's own conversation. System messages are not summarized.
        """
        end = await self.count()
        first, summary = await self._compaction(end)
        if summary is not None:
            for message in await self._system_messages(first):
                yield message
            yield UserMessage(content=summary)
        async for message in self.messages(first, end):
            if not is_failure_message(message):
                yield message

    async def seed(self, leave_out: int = 0, most: int = MAX_SEED) -> list[Message]:
        """Returns the compacted history for a fresh agent, without the last `leave_out` messages.

        Of a history that is longer than `most` characters, as JSON, it has the newest messages, after a user message that states
        how many are omitted. All system messages are kept.
        """
        end = await self.count() - leave_out
        first, summary = await self._compaction(end)
        start = await self._store.messages.first_of_newest(self._session_id, first, end, most)
        if start > first:
            start = await self._complete_exchange(start, end)
        before = [summary] if summary is not None else []
        if start > first:
            before.append(OMITTED.format(count=start, size=most // 1024 // 1024))
        found: list[Message] = await self._system_messages(start) if before else []
        found += [UserMessage(content="\n\n".join(before))] if before else []
        return found + [message async for message in self.messages(start, end) if not is_failure_message(message)]

    async def unanswered_calls(self, end: int | None = None) -> list[Message]:
        """Returns the calls without a result, as messages of these calls only, the last assistant message at the end.

        With `end` only the messages before this position count.
        """
        found: list[dict[str, ToolUseBlock]] = []
        async for message in self.messages(0, end):
            if isinstance(message, AssistantMessage):
                calls = {block.tool_call_id: block for block in blocks(message.content) if isinstance(block, ToolUseBlock)}
                found = [*(earlier for earlier in found if earlier), calls]
            elif isinstance(message, ToolMessage):
                for calls in found:
                    calls.pop(message.tool_call_id, None)
        return [AssistantMessage(content=tuple(calls.values())) for calls in found]

    async def _compaction(self, end: int) -> tuple[int, str | None]:
        """The position of the first message that the last compaction has kept, and its summary; (0, None) if there is none."""
        compaction = await self._store.compactions.get(self._session_id)
        if compaction is None:
            return 0, None
        first, summary = compaction
        return await self._with_its_call(first, end), summary

    async def _with_its_call(self, position: int, end: int) -> int:
        """The position, or that of the call whose result stands there: a result is kept together with its call."""
        while 0 < position < end and isinstance(await self._at(position), ToolMessage):
            position -= 1
        return position

    async def _complete_exchange(self, position: int, end: int) -> int:
        """The next position without a result, whose call is omitted; if there is none, that of the call."""
        following = position
        while following < end and isinstance(await self._at(following), ToolMessage):
            following += 1
        return following if following < end else await self._with_its_call(position, end)

    async def _at(self, position: int) -> Message:
        (body,) = await self._store.messages.page(self._session_id, position, position + 1)
        return MESSAGE.validate_json(body)

    async def _system_messages(self, before: int) -> list[Message]:
        bodies = await self._store.messages.system_messages(self._session_id, before)
        found = [MESSAGE.validate_json(body) for body in bodies]
        return [message for message in found if isinstance(message, SystemMessage)]

"""Conversations: continues the session that a request's messages belong to, or creates one with these messages as its history.

A request of a stateless API has the whole conversation. Its last messages are new: messages of the user, or results of
application-side tools. The messages before them tell which session it continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from drivers.contract.agent import PermissionReply, Reply, ToolReply
from drivers.contract.driver_info import EFFORT_OPTION, ToolGrant, ToolSpec
from drivers.contract.events import Awaiting, Event, SessionEnd
from drivers.contract.messages import (
    AssistantMessage,
    ContentBlock,
    Message,
    SystemMessage,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
)
from gateway.agents.configured_agents import Agents, ConfiguredAgent
from gateway.agents.folder_access import FOLDER_OF_SESSION, in_time
from gateway.config import OwnTools
from gateway.conversations.message_digests import Digest, conversation_digest, message_digests
from gateway.conversations.open_conversations import OpenConversation, OpenConversations
from gateway.errors import BadRequest, Conflict, NotFound, StoreUnavailable
from gateway.events.event_log import Entry
from gateway.events.turn_reader import Turn
from gateway.runs.answer_format import AnswerFormat, require_schema
from gateway.runs.cancellation import completed
from gateway.runs.idempotency import IdempotencyKey
from gateway.runs.pending_calls import ids, unanswered
from gateway.security.authentication import Caller
from gateway.sessions.message_checks import check_messages, check_prompt, check_seed
from gateway.sessions.message_queue import MessageRemoved
from gateway.sessions.registry import Sessions
from gateway.sessions.session import Session, Submission, never
from gateway.sessions.settings import SessionSettings
from gateway.sessions.tool_checks import check_tools

log = logging.getLogger(__name__)

READ_ONLY = frozenset({"read", "search"})
"""The kinds of the tools that an agent has with `tools = "read-only"`."""
CANNOT_ASK = "clients of this API cannot be asked for permission; a rule that allows the call (agents.NAME.policy) lets it run"
TOOLS_OFF = "this call was refused: the client takes no calls of its tools for this answer; go on without them"


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An answer that a request's messages follow, however the conversation went on since.

    `session_id` is its session, `agent` the name of that one's agent, and `last` the number of its last event. `system_before` is
    the system message with which the conversation up to there begins, if it does, and `system_now` the one that replaces it.
    """

    session_id: str
    agent: str
    last: int
    system_before: str | None = None
    system_now: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest:
    """A conversation whose last messages are new.

    `messages` are all of it, as the client has them: the last one is a user message or the result of a call. With `after` they
    are only the messages that follow that answer. `options` are of the agent, such as `model`. `tools` are the application-side
    tools; without `call_tools` their calls are refused, and the agent goes on. `hints` are values that the client gives with each
    request of the conversation, such as its user, and `name` is one that it gives with no other conversation. `session_id` is the
    session that it wants to continue. `answer` is what the answer has to be, and `answer_field` the field of the request that has
    its schema, for errors. With `by_id` the client can continue it by an id of the answer. With `background` no
    message is expected to follow, such as after a request for a title: the session is deleted with the answer. Its agent is ended
    instead if the client can ask for the answer again, by its id or by a `key`.
    """

    agent: str
    messages: Sequence[Message]
    options: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[ToolSpec, ...] = ()
    call_tools: bool = True
    hints: frozenset[str] = frozenset()
    name: str | None = None
    session_id: str | None = None
    background: bool = False
    after: EarlierAnswer | None = None
    by_id: bool = False
    key: IdempotencyKey | None = None
    answer: AnswerFormat | None = None
    answer_field: str = ""


class ConversationTurn:
    """The answer to a request. Call `answered` when the client has got it, or `abandon` when it has gone."""

    def __init__(self, conversations: Conversations, session: Session, turn: Turn, asked: _Asked) -> None:
        self.session = session
        self.first = turn.first
        """The number of the turn's first event in the log of the session."""
        self._conversations, self._turn, self._asked = conversations, turn, asked
        self._denials: tuple[Reply, ...] = ()
        self._end: SessionEnd | Awaiting | None = None
        self._to_refuse = self._abandoned = False

    @property
    def app_tools(self) -> frozenset[str]:
        """The names of the application-side tools whose calls the client takes."""
        return frozenset(tool.name for tool in self._asked.settings.app_tools or () if self._asked.call_tools)

    @property
    def structured(self) -> bool:
        """Whether the answer has to be JSON of a schema."""
        answer = self._asked.settings.answer
        return answer is not None and answer.schema is not None

    async def batches(self) -> AsyncIterator[list[Entry]]:
        """The events as they come; the last is `session_end`, or `awaiting` with calls that wait for the client's results.

        Calls that wait for a permission are denied, and the answer goes on. If they come together with calls for the client, they
        are denied with its next request. Raises GatewayError if the session cannot go on.
        """
        while True:
            last: Event | None = None
            async for entries in self._turn.batches():
                last = entries[-1].event
                if isinstance(last, Awaiting) and not self._awaits_results(last):
                    entries, self._to_refuse = entries[:-1], True
                if entries:
                    yield entries
            if not isinstance(last, Awaiting):
                self._end = last if isinstance(last, SessionEnd) else None
                return
            denials: list[Reply] = [
                PermissionReply(call.id, "deny", reason=CANNOT_ASK)
                for call in last.calls
                if call.wants != "result" and not call.optional
            ]
            if self._awaits_results(last):
                self._denials, self._end = tuple(denials), last
                return
            refusals = [ToolReply(call.id, TOOLS_OFF) for call in last.calls if call.wants == "result"]
            # Not half: its client may disconnect, and the turn that begins is to be cancelled then.
            await completed(self._refuse([*denials, *refusals]))

    async def _refuse(self, replies: Sequence[Reply]) -> None:
        if self._abandoned:
            return
        self._turn = await self.session.submit(Submission(replies=replies))
        self._to_refuse = False
        if self._abandoned:
            self._conversations.cancel_soon(self.session, self._turn)

    def _awaits_results(self, event: Awaiting) -> bool:
        return self._asked.call_tools and any(call.wants == "result" for call in event.calls)

    def answered(self, answer: AssistantMessage) -> None:
        """The client has got this answer: a request with it in its messages continues the session.

        An answer that ended with an error is not continued: its client may or may not have it.
        """
        if self._end is None or (isinstance(self._end, SessionEnd) and self._end.stop_reason == "error"):
            return
        asked = self._asked
        if asked.background and isinstance(self._end, SessionEnd):
            if asked.key is None and not asked.by_id:
                return self._conversations.delete_soon(asked.caller, self.session)
            self._conversations.end_agent_soon(self.session)
        if asked.digests is None:
            return
        self._conversations.keep(
            self.session,
            OpenConversation(
                self.session.id,
                asked.scope,
                (*asked.digests, *message_digests([*asked.new, answer])),
                self._turn.first,
                weakref.ref(self.session),
                self._denials,
                asked.hints,
                asked.name,
                asked.by_id,
            ),
        )

    def abandon(self, answer: AssistantMessage | None = None) -> None:
        """The client has disconnected: stop the run. `answer` is what it has got; a request with that continues the session."""
        self._abandoned = True
        # A run whose calls are still to be refused waits for that, and nobody else would refuse them.
        self._conversations.cancel_soon(self.session, self._turn, waiting=self._to_refuse)
        if answer is not None and message_digests([answer]):
            self._end = SessionEnd(exit_code=130, stop_reason="cancelled")
            self.answered(answer)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was checked. `before` is the conversation without the new messages; `digests` are of it, None if it is not
    known."""

    caller: Caller
    agent: ConfiguredAgent
    settings: SessionSettings
    before: Sequence[Message]
    new: Sequence[Message]
    scope: tuple[str, ...]
    digests: tuple[Digest, ...] | None
    hints: frozenset[str]
    name: str | None
    by_id: bool
    call_tools: bool
    background: bool
    key: IdempotencyKey | None
    disconnected: Callable[[], Awaitable[None]]

    @property
    def prompt(self) -> UserMessage | None:
        """The new messages as one message of the user; None if they are results of calls only."""
        users = [message for message in self.new if not isinstance(message, ToolMessage)]
        return _joined(users) if users else None

    @property
    def replies(self) -> list[Reply]:
        return [ToolReply(message.tool_call_id, message.content) for message in self.new if isinstance(message, ToolMessage)]

    def new_settings(self, current: SessionSettings) -> SessionSettings:
        """The settings of a session that the request continues: the request decides its model, its effort and its tools."""
        new = self.settings
        # Others may have changed since, such as the mode by the CLI, or any by another protocol.
        kept = {name: value for name, value in current.options.items() if name not in ("model", EFFORT_OPTION)}
        options, secrets = {**kept, **new.options}, {**current.secrets, **new.secrets}
        return replace(current, options=options, secrets=secrets, tools=new.tools, app_tools=new.app_tools, answer=new.answer)


class Conversations:
    """Finds the sessions of conversations, and creates a session for a conversation that has none yet."""

    def __init__(self, agents: Agents, sessions: Sessions, own_tools: OwnTools) -> None:
        self._agents, self._sessions, self._own_tools = agents, sessions, own_tools
        self._open = OpenConversations()
        self._background: set[asyncio.Task[object]] = set()

    async def submit(
        self, caller: Caller, request: ConversationRequest, disconnected: Callable[[], Awaitable[None]] = never
    ) -> ConversationTurn:
        """Begin to answer the new messages. `disconnected` cancels that if it returns before the agent has them.

        A session is continued if its history is that of the conversation, and nobody else has continued it since. Otherwise the
        conversation gets a new session. Raises BadRequest, NotFound (for `session_id` and `after`), TooMany, ShuttingDown or
        AgentProblem; then nothing has changed.
        """
        if request.after is not None:
            return await self._submit_after(caller, request, request.after, disconnected)
        asked = await self._checked(caller, request, disconnected)
        found = await self._find(asked, request.session_id)
        if found is not None:
            session, conversation = found
            try:
                return await self._continue(asked, session, conversation)
            except MessageRemoved:
                raise
            except (Conflict, NotFound) as error:
                log.info("session %s is not continued by a conversation: %s", session.id, error)
            except BaseException:
                self._open.add(conversation)
                raise
        # The node of the named session has it: another one would look for that first, and find that it belongs here.
        return await self._begin(asked, here=request.session_id is not None)

    def keep(self, session: Session, conversation: OpenConversation) -> None:
        """Let a next request continue this conversation of a session, also after a restart."""
        self._open.add(conversation)
        self._run_in_background(self._store(session, conversation))

    async def _store(self, session: Session, conversation: OpenConversation) -> None:
        try:
            await session.store.sessions.update(session.id, conversation=conversation.digest)
        except StoreUnavailable as error:
            # Until the gateway stops, it is found in memory; then the conversation gets a new session.
            log.warning("session %s: its conversation is not stored: %s", session.id, error)

    async def close(self) -> None:
        """Wait for what is in the background."""
        while self._background:
            await asyncio.wait(self._background)

    def delete_soon(self, caller: Caller, session: Session) -> None:
        """Delete a session in the background."""
        self._sessions.delete_soon(caller, session)

    def end_agent_soon(self, session: Session) -> None:
        """End the agent of a session in the background."""
        self._sessions.end_agent_soon(session)

    def cancel_soon(self, session: Session, turn: Turn, *, waiting: bool = False) -> None:
        """Cancel the run of a turn in the background; with `waiting` also if it waits for its client."""
        self._sessions.cancel_soon(session, turn, waiting=waiting)

    # -- the request ------------------------------------------------------------------------------------------------------

    async def _checked(self, caller: Caller, request: ConversationRequest, disconnected: Callable[[], Awaitable[None]]) -> _Asked:
        return await in_time(partial(self._check, caller, request, disconnected), FOLDER_OF_SESSION)

    def _check(self, caller: Caller, request: ConversationRequest, disconnected: Callable[[], Awaitable[None]]) -> _Asked:
        agent = self._agents.get(request.agent)
        messages = request.messages if agent.info.capabilities.system else _without_system(request.messages)
        if request.after is None:
            before, new = _divided(messages)
            _check_calls(before, new)
        else:
            before, new = (), _as_prompt(messages)
            _require_answerable(new)
        key = agent.workspace_key(caller.name)
        agent.check_options(request.options, key)
        hidden = {option.name for option in agent.options if option.secret}
        settings = SessionSettings(
            options={name: value for name, value in request.options.items() if name not in hidden},
            secrets={name: value for name, value in request.options.items() if name in hidden},
            tools=own_tools(agent, self._own_tools),
            app_tools=request.tools,
            workspace_key=key,
            answer=request.answer,
        )
        if request.answer is not None and request.answer.schema is not None:
            require_schema(request.answer.schema, request.answer_field)
        check_tools(agent, settings.tools or (), request.tools, self._agents, fixed=True)
        agent.spec({**settings.options, **settings.secrets}, key)
        scope = (caller.name or "", agent.name, json.dumps(dict(request.options), sort_keys=True))
        check_messages(agent, new)
        asked = _Asked(
            caller,
            agent,
            settings,
            before,
            new,
            scope,
            message_digests(before) if request.after is None else None,
            frozenset(f"{caller.name or ''} {hint}" for hint in request.hints),
            None if request.name is None else f"{caller.name or ''} {request.name}",
            request.by_id,
            request.call_tools,
            request.background,
            request.key,
            disconnected,
        )
        if asked.prompt is not None:
            check_prompt(asked.prompt)
        return asked

    # -- the session that is continued ------------------------------------------------------------------------------------

    async def _find(self, asked: _Asked, session_id: str | None) -> tuple[Session, OpenConversation] | None:
        """The session that the request continues, with its conversation, which no other request finds from now on."""
        if session_id is not None:
            return await self._named(asked, session_id)
        if not any(isinstance(message, AssistantMessage) for message in asked.before):
            return None
        conversation = self._open.take(asked.scope, asked.digests or (), asked.hints, asked.name, by_id=asked.by_id)
        if conversation is None:
            return await self._stored(asked)
        session = conversation.session()
        if session is not None:
            return session, conversation
        try:
            return await self._named(asked, conversation.session_id)
        except NotFound:
            return None

    async def _stored(self, asked: _Asked) -> tuple[Session, OpenConversation] | None:
        """The session that has answered exactly this conversation last, such as before a restart."""
        digests = asked.digests or ()
        session = await self._sessions.of_conversation(asked.caller, conversation_digest(asked.scope, digests))
        if session is None or self._open.get(session.id) is not None:
            # What the store has may be older than what is known here.
            return None
        if await _digests_of(session, system=False) != _spoken(asked):
            return None
        return session, OpenConversation(session.id, asked.scope, digests, session.turn_began, weakref.ref(session))

    async def _named(self, asked: _Asked, session_id: str) -> tuple[Session, OpenConversation] | None:
        """A session by its id, if the request continues it: if its history ends with the messages of the conversation."""
        session = await self._sessions.get(asked.caller, session_id)
        if session.agent.name != asked.agent.name:
            raise other_agent(session_id, session.agent.name)
        known = self._open.get(session_id)
        if known is not None and known.session() is session and session.turn_began == known.turn_began:
            conversation = known
        else:
            digests = await _digests_of(session)
            conversation = OpenConversation(session_id, asked.scope, digests, session.turn_began, weakref.ref(session))
        spoken = _spoken(asked)
        if spoken and conversation.digests[-len(spoken) :] != spoken:
            return None
        self._open.forget(session_id)
        return session, conversation

    async def _continue(self, asked: _Asked, session: Session, conversation: OpenConversation) -> ConversationTurn:
        prompt, replies = asked.prompt, asked.replies
        if prompt is not None and replies:
            # The run goes on with the results, and takes the message after it only: a new session gets both in order.
            self._run_in_background(session.cancel())
            raise Conflict("the client sends a message with the results of its calls")

        def require_unchanged() -> None:
            # Another client may have continued it, or the time limit for the results may have passed.
            if session.turn_began != conversation.turn_began:
                raise Conflict("it has had another turn")

        def settings(current: SessionSettings) -> SessionSettings:
            require_unchanged()
            return asked.new_settings(current)

        require_unchanged()
        waiting = session.run.pending.calls if session.run is not None and session.state == "waiting" else {}
        if prompt is None and not waiting.keys() >= {reply.call_id for reply in replies}:
            raise Conflict("its calls wait for no results any more, such as after a cancel")
        # Those of the client may be only the last messages of the session, or have another system message.
        asked = replace(asked, digests=conversation.digests)
        turn = await session.submit(
            Submission(
                message=prompt,
                replies=[*replies, *conversation.replies] if prompt is None else (),
                settings=settings,
                key=asked.key,
                answer=asked.settings.answer,
                when_busy="queue",
                disconnected=asked.disconnected,
                cancel_on_disconnect=True,
            )
        )
        return ConversationTurn(self, session, turn, asked)

    # -- the messages after an earlier answer -----------------------------------------------------------------------------

    async def _submit_after(
        self, caller: Caller, request: ConversationRequest, after: EarlierAnswer, disconnected: Callable[[], Awaitable[None]]
    ) -> ConversationTurn:
        """Continue the session if the answer is its last one; else a new one with the history up to the answer."""
        same_agent = after.agent == request.agent
        # A node that has the agent of the request may have neither the session nor its agent.
        session = await (self._sessions.get if same_agent else self._sessions.get_history)(caller, after.session_id)
        spoken = any(isinstance(message, AssistantMessage) for message in request.messages)
        if same_agent and after.system_before == after.system_now and not spoken:
            try:
                return await self._continue_after(await self._checked(caller, request, disconnected), session, after)
            except MessageRemoved:
                raise
            except Conflict as error:
                log.info("session %s is not continued after event %d: %s", session.id, after.last, error)
        history = [message async for message in session.history.until(after.last)]
        app_tools = session.config.app_tools or ()
        if not same_agent:
            history = _without_own_calls(history, app_tools)
        whole = replace(request, messages=_with_new(history, request.messages, after, app_tools), after=None)
        asked = await self._checked(caller, whole, disconnected)
        asked = replace(asked, digests=message_digests(_without_own_calls(asked.before, app_tools)))
        return await self._begin(asked, here=same_agent)

    async def _continue_after(self, asked: _Asked, session: Session, after: EarlierAnswer) -> ConversationTurn:
        """Continue a session. Raises Conflict if the answer is not its last one."""

        def require_last() -> None:
            if session.log.last != after.last:
                raise Conflict("it has been continued since")

        require_last()
        waiting = session.run.pending.calls.values() if session.run is not None and session.state == "waiting" else ()
        results = {call.id for call in waiting if call.wants == "result"}
        replies = {reply.call_id for reply in asked.replies}
        if unknown := replies - results:
            raise BadRequest(f"messages: there is no tool call {ids(sorted(unknown))} that waits for this result")
        if missing := results - replies:
            raise BadRequest(f"messages: the tool call {ids(sorted(missing))} has no result; send one for each call")
        if asked.prompt is not None and replies:
            self._run_in_background(session.cancel())
            raise Conflict("the client sends a message with the results of its calls")

        def settings(current: SessionSettings) -> SessionSettings:
            require_last()
            return asked.new_settings(current)

        denials = [
            PermissionReply(call.id, "deny", reason=CANNOT_ASK)
            for call in waiting
            if call.wants != "result" and not call.optional
        ]
        known = self._open.get(session.id)
        if known is not None and known.session() is session and known.turn_began == session.turn_began:
            asked = replace(asked, digests=known.digests)
        submission = Submission(
            message=asked.prompt,
            replies=[*asked.replies, *denials] if asked.prompt is None else (),
            settings=settings,
            key=asked.key,
            answer=asked.settings.answer,
            when_busy="queue",
            disconnected=asked.disconnected,
            cancel_on_disconnect=True,
        )
        try:
            turn = await session.submit(submission)
        except BadRequest:
            # Another request may have sent results of the same calls meanwhile.
            require_last()
            raise
        self._open.forget(session.id)
        return ConversationTurn(self, session, turn, asked)

    # -- a new session ----------------------------------------------------------------------------------------------------

    async def _begin(self, asked: _Asked, *, here: bool) -> ConversationTurn:
        """A new session. With `here` it is made at this node of a cluster, which has the session that it goes on from."""
        prompt = asked.prompt
        results = [message for message in asked.new if isinstance(message, ToolMessage)]
        history = [*asked.before, *results] if prompt is not None else asked.before
        if asked.agent.info.capabilities.seeds:
            # Any other agent gets the history as text, whatever is in it.
            check_seed(asked.agent, history)
        session = await self._sessions.create(
            asked.caller, asked.agent, asked.settings, history, wait_for_calls=prompt is None, here=here
        )
        submission = Submission(
            message=prompt,
            replies=() if prompt is not None else asked.replies,
            key=asked.key,
            answer=asked.settings.answer,
            disconnected=asked.disconnected,
            cancel_on_disconnect=True,
        )
        try:
            turn = await session.submit(submission)
        except BaseException:
            await self._sessions.delete(asked.caller, session.id)
            raise
        return ConversationTurn(self, session, turn, asked)

    def _run_in_background(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _digests_of(session: Session, *, system: bool = True) -> tuple[Digest, ...]:
    """The digests of what a session has stored, as its client has it; without `system`, without messages of the system."""
    history = [message async for message in session.history.messages() if system or not isinstance(message, SystemMessage)]
    return message_digests(_without_own_calls(history, session.config.app_tools or ()))


def _spoken(asked: _Asked) -> tuple[Digest, ...]:
    return message_digests(message for message in asked.before if not isinstance(message, SystemMessage))


def other_agent(session_id: str, agent: str) -> BadRequest:
    """The error for a request that names a session of another agent than its own."""
    return BadRequest(f"session {session_id!r} is of agent {agent!r}; leave it out, or set the model to that agent")


def own_tools(agent: ConfiguredAgent, allowed: OwnTools) -> tuple[ToolGrant, ...]:
    """The agent's own tools in a conversation: none, the tools that read and search files, or all, as its policy decides."""
    if allowed == "none":
        return ()
    if allowed == "read-only":
        return tuple(ToolGrant(tool.name, trust=True) for tool in agent.info.tools if tool.kind in READ_ONLY)
    return tuple(ToolGrant(tool.name) for tool in agent.info.tools)


def _divided(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """The messages up to the last answer (without one, the first system messages), and those after it, which are new."""
    at = next((n for n in range(len(messages), 0, -1) if isinstance(messages[n - 1], AssistantMessage)), None)
    if at is None:
        at = next((n for n, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    before, new = messages[:at], _as_prompt(messages[at:])
    _require_answerable(new)
    return before, new


def _as_prompt(new: Sequence[Message]) -> Sequence[Message]:
    """The new messages of a conversation that ends with one of the system, which a model answers and an agent needs as a prompt.

    Behind results of calls it is a part of the last one: a run that waits for results takes no message beside them.
    """
    last = new[-1] if new else None
    if not isinstance(last, SystemMessage) or any(isinstance(message, UserMessage) for message in new):
        return new
    if len(new) > 1 and isinstance(result := new[-2], ToolMessage):
        content = (*blocks(result.content), TextBlock(text=f"\n\n{last.content}"))
        return [*new[:-2], ToolMessage(tool_call_id=result.tool_call_id, content=content)]
    return [*new[:-1], UserMessage(content=last.content)]


def _require_answerable(new: Sequence[Message]) -> None:
    if not any(isinstance(message, UserMessage | ToolMessage) for message in new):
        raise BadRequest("messages: the last message must be of the user, or the result of a tool call")


def _with_new(
    history: Sequence[Message], new: Sequence[Message], after: EarlierAnswer, app_tools: Sequence[ToolSpec]
) -> list[Message]:
    """The whole conversation: a history, with another system message, and the messages that follow it."""
    found = _without_leading_system(history, after.system_before)
    names = {tool.name for tool in app_tools}
    # Calls of the agent's own that were waiting beside those of the client.
    denied = [call_id for call_id, call in unanswered(history).items() if call.name not in names]
    found += [ToolMessage(tool_call_id=call_id, content=f"Tool call denied: {CANNOT_ASK}") for call_id in denied]
    system = [SystemMessage(content=after.system_now)] if after.system_now else []
    return [*system, *found, *new]


def _without_leading_system(history: Sequence[Message], text: str | None) -> list[Message]:
    """A history without the system message that it begins with, which `_without_system` may have put into the first message."""
    first = history[0] if history and text else None
    if isinstance(first, SystemMessage):
        return [*history[1:]]
    if isinstance(first, UserMessage) and isinstance(first.content, tuple):
        parts = [part.text if isinstance(part, TextBlock) else None for part in first.content[:2]]
        if parts == [text, "\n\n"]:
            return [UserMessage(content=first.content[2:]), *history[1:]]
    return [*history]


def _check_calls(before: Sequence[Message], new: Sequence[Message]) -> None:
    """Raises BadRequest unless each call of the conversation has its result, and each result its call."""
    calls = {
        block.tool_call_id
        for message in before
        if isinstance(message, AssistantMessage) and not isinstance(message.content, str)
        for block in message.content
        if isinstance(block, ToolUseBlock)
    }
    results = [message.tool_call_id for message in [*before, *new] if isinstance(message, ToolMessage)]
    if unknown := [call_id for call_id in results if call_id not in calls]:
        raise BadRequest(f"messages: there is no tool call {ids(unknown)} that this is the result of")
    if missing := unanswered([*before, *new]):
        raise BadRequest(f"messages: the tool call {ids(missing)} has no result; send a tool message for each call")


def _joined(messages: Sequence[Message]) -> UserMessage:
    """One message of the user with the content of all of them."""
    if len(messages) == 1 and isinstance(messages[0], UserMessage):
        return messages[0]
    parts: list[ContentBlock] = []
    for message in messages:
        if parts:
            parts.append(TextBlock(text="\n\n"))
        parts += blocks(message.content)
    return UserMessage(content=tuple(parts))


def _without_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with the text of system messages in the next message of the user, for an agent that takes no system prompt."""
    found: list[Message] = []
    system: list[Message] = []
    for message in messages:
        if isinstance(message, SystemMessage):
            system.append(message)
        elif isinstance(message, UserMessage):
            found.append(_joined([*system, message]))
            system = []
        else:
            found.append(message)
    # Behind the last message of the user: it is the prompt, or a part of it.
    return [*found, *system]


def _without_own_calls(history: Sequence[Message], app_tools: Sequence[ToolSpec]) -> list[Message]:
    """A stored history as a client has it: without the calls of the agent's own tools, and without their results."""
    names = {tool.name for tool in app_tools}
    shown: set[str] = set()
    found: list[Message] = []
    for message in history:
        if isinstance(message, ToolMessage) and message.tool_call_id not in shown:
            continue
        if isinstance(message, AssistantMessage):
            kept = [block for block in blocks(message.content) if not isinstance(block, ToolUseBlock) or block.name in names]
            shown |= {block.tool_call_id for block in kept if isinstance(block, ToolUseBlock)}
            message = AssistantMessage(content=tuple(kept))
        found.append(message)
    return found

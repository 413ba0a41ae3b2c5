"""OpenAI's Responses API: `POST /v1/responses`, the responses by their ids, and `/v1/conversations`.

A response is the answer of one turn of a session. `previous_response_id` continues that session, if nothing has come after that
response, and otherwise a new session with the history up to it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from drivers.contract.messages import (
    AssistantMessage,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
    blocks,
)
from gateway.app import Gateway
from gateway.conversations.conversations import ConversationRequest, ConversationTurn, EarlierAnswer
from gateway.errors import BadRequest, Conflict, GatewayError, NotFound
from gateway.events.log_entries import TurnStart
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas, authenticated_router
from gateway.protocols.client_connection import ClientConnection
from gateway.protocols.model_apis.answer_options import answer_format
from gateway.protocols.model_apis.chat_completions_request import is_background_task
from gateway.protocols.model_apis.conversation_headers import ChatHeader, SessionHeader
from gateway.protocols.model_apis.models import agent_name, effort_options, find_model_of_session, usable_tools
from gateway.protocols.model_apis.responses_output import (
    CONVERSATION,
    DONE,
    RESPONSE,
    Json,
    ResponseView,
    as_json,
    described_tools,
    frames,
    repeated_fields,
    response_of_item,
)
from gateway.protocols.model_apis.responses_request import Conversation, Item, ResponsesRequest
from gateway.protocols.model_apis.running_answer import SESSION, RunningAnswer, failure_response, with_session
from gateway.protocols.model_apis.stored_responses import NoResponse, StoredResponse, StoredResponses, read
from gateway.protocols.model_apis.vendor_requests import error_body, openai_errors
from gateway.protocols.route_metadata import BODY, example, stream_response
from gateway.protocols.sse import event_stream
from gateway.security.authentication import Caller, request_is_forwarded
from gateway.security.quotas import RequestQuotas
from gateway.sessions.session import never
from gateway.store import ConversationRecord, ResponseRecord
from gateway.text_limits import Metadata

log = logging.getLogger(__name__)

EVENTS = (
    "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    "response.output_text.delta", "response.output_text.done", "response.content_part.done",
    "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done", "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "response.refusal.delta", "response.refusal.done",
    "response.custom_tool_call_input.delta", "response.custom_tool_call_input.done",
    "response.output_item.done", "response.completed", "response.incomplete", "response.failed", "error",
)  # fmt: skip
RESPONSE_EXAMPLE = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "model": "echo",
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        }
    ],
}
ANSWER = stream_response(
    """With `stream`: the events of a response, whose data are objects with their `type` and their `sequence_number`; and the last
`[DONE]`. Lines that begin with a colon only keep the connection open.""",
    """event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,"delta":"hello"}

event: response.completed
data: {"type":"response.completed","sequence_number":8,"response":{"id":"resp_1","object":"response","status":"completed"}}

data: [DONE]

""",
    {name: {"type": "object", "properties": {"type": {"const": name}}, "required": ["type"]} for name in EVENTS},
    last="[DONE]",
    json=example(RESPONSE_EXAMPLE),
)
CONVERSATION_EXAMPLE = {"id": "conv_1", "object": "conversation", "created_at": 1763800000, "metadata": {}}
NOT_FOUND, CREATION = openai_errors(404), openai_errors(404, *BODY, 502)


class NewConversation(BaseModel):
    """A conversation that has no items yet."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra={"examples": [{"metadata": {"topic": "demo"}}]})

    metadata: Metadata | None = None
    items: list[dict[str, Any]] | None = Field(default=None, max_length=0, description="Not supported: send them as `input`.")


class ConversationUpdate(BaseModel):
    """What a conversation has from now on."""

    model_config = ConfigDict(extra="allow", frozen=True, json_schema_extra={"examples": [{"metadata": {"topic": "another"}}]})

    metadata: Metadata


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    return _Responses(gateway).router()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was read: as a conversation's, with what the response repeats of it."""

    conversation: ConversationRequest
    fields: Json
    ignored: tuple[str, ...]
    requires_call: bool


class _Responses:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._stored = gateway, StoredResponses(gateway)
        gateway.close_last.append(self._stored.close)

    def router(self) -> APIRouter:
        routes = authenticated_router(self._gateway, "OpenAI: responses", errors=openai_errors)

        @routes.post("/v1/responses", response_class=JSONResponse, responses={**CREATION, 200: ANSWER})
        async def create_response(
            request: ResponsesRequest,
            http: Request,
            caller: CurrentCaller,
            quotas: CurrentQuotas,
            x_portico_session: SessionHeader = None,
            x_openwebui_chat_id: ChatHeader = None,
        ) -> Response:
            """Answer new items of a conversation. Without `background`, the run is cancelled if the client disconnects."""
            try:
                return await self._create(http, caller, quotas, request, x_portico_session, x_openwebui_chat_id)
            except NoResponse as error:
                return _not_found(str(error), "previous_response_not_found", "previous_response_id")
            except BadRequest as error:
                # A conversation's messages are the items of this API.
                raise BadRequest(re.sub("^messages: ", "input: ", str(error))) from error

        @routes.get(
            "/v1/responses/{response_id}",
            response_class=JSONResponse,
            responses={**NOT_FOUND, 200: ANSWER},
        )
        async def get_response(
            response_id: str,
            caller: CurrentCaller,
            quotas: CurrentQuotas,
            stream: bool = False,
            starting_after: Annotated[int | None, Query(description="Leave out the events up to this number.")] = None,
        ) -> Response:
            """A response, also while it is in progress; or its stream of events, from the first one on or after one."""
            found = await self._stored.shown(caller, response_id)
            if not stream:
                return with_session(_response((await self._stored.current(found))[0]), found.session, ())
            quotas.take_stream()
            after = -1 if starting_after is None else starting_after
            return with_session(
                event_stream(self._events(found, after), self._gateway.keep_alive, clock=self._gateway.clock), found.session, ()
            )

        @routes.delete(
            "/v1/responses/{response_id}",
            responses={**NOT_FOUND, 200: example({"id": "resp_1", "object": "response", "deleted": True})},
        )
        async def delete_response(response_id: str, caller: CurrentCaller) -> JSONResponse:
            """Delete a response, and cancel it if it is in progress. What was said stays in its session."""
            found = await self._stored.get(caller, response_id)
            await self._cancel(found)
            await self._stored.delete(found)
            return JSONResponse({"id": response_id, "object": "response", "deleted": True})

        @routes.post(
            "/v1/responses/{response_id}/cancel",
            responses={**NOT_FOUND, 200: example({**RESPONSE_EXAMPLE, "status": "cancelled"})},
        )
        async def cancel_response(response_id: str, caller: CurrentCaller) -> Response:
            """Cancel a response in the background. One that is over stays as it is."""
            found = await self._stored.get(caller, response_id)
            if not found.fields["background"]:
                raise BadRequest("only a response that was created with `background` can be cancelled; disconnect from others")
            await self._cancel(found)
            return with_session(_response((await self._stored.current(found))[0]), found.session, ())

        @routes.get(
            "/v1/responses/{response_id}/input_items",
            responses={
                **NOT_FOUND,
                200: example({"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}),
            },
        )
        async def list_input_items(
            response_id: str,
            caller: CurrentCaller,
            limit: Annotated[int, Query(ge=1, le=100)] = 20,
            order: Literal["asc", "desc"] = "desc",
            after: str | None = None,
        ) -> JSONResponse:
            """The items that were new with a response's request."""
            items = await _input_items(await self._stored.shown(caller, response_id))
            return JSONResponse(_page(items if order == "asc" else items[::-1], limit, after))

        self._add_conversations(routes)
        return routes

    def _add_conversations(self, routes: APIRouter) -> None:
        found = {**NOT_FOUND, 200: example(CONVERSATION_EXAMPLE)}

        @routes.post("/v1/conversations", responses={**openai_errors(*BODY), 200: example(CONVERSATION_EXAMPLE)})
        async def create_conversation(request: NewConversation, caller: CurrentCaller) -> JSONResponse:
            """Create the name of a conversation, for the field `conversation` of responses."""
            record = ConversationRecord(
                f"{CONVERSATION}{uuid.uuid4().hex}", caller.name, time.time(), {"metadata": request.metadata or {}}
            )
            await self._gateway.store.responses.add_conversation(record)
            return JSONResponse(_conversation(record))

        @routes.get("/v1/conversations/{conversation_id}", responses=found)
        async def get_conversation(conversation_id: str, caller: CurrentCaller) -> JSONResponse:
            """A conversation."""
            return JSONResponse(_conversation(await self._find_conversation(caller, conversation_id)))

        @routes.post("/v1/conversations/{conversation_id}", responses={**openai_errors(*BODY), **found})
        async def update_conversation(conversation_id: str, request: ConversationUpdate, caller: CurrentCaller) -> JSONResponse:
            """Replace the metadata of a conversation."""
            record = await self._find_conversation(caller, conversation_id)
            record = replace(record, body={**record.body, "metadata": request.metadata})
            await self._gateway.store.responses.update_conversation(record)
            return JSONResponse(_conversation(record))

        @routes.delete(
            "/v1/conversations/{conversation_id}",
            responses={**NOT_FOUND, 200: example({"id": "conv_1", "object": "conversation.deleted", "deleted": True})},
        )
        async def delete_conversation(conversation_id: str, caller: CurrentCaller) -> JSONResponse:
            """Delete the name of a conversation. Its responses and their sessions stay."""
            record = await self._find_conversation(caller, conversation_id)
            await self._gateway.store.responses.delete_conversation(record.id)
            return JSONResponse({"id": record.id, "object": "conversation.deleted", "deleted": True})

    # -- a new response ---------------------------------------------------------------------------------------------------

    async def _create(
        self,
        http: Request,
        caller: Caller,
        quotas: RequestQuotas,
        request: ResponsesRequest,
        session_id: str | None,
        chat_id: str | None,
    ) -> Response:
        if request.stream:
            quotas.take_stream()
        connection = ClientConnection(http)
        async with self._stored.alone_in(request.conversation_id):
            asked = await self._asked(caller, request, session_id, chat_id)
            disconnected = never if request.background else connection.disconnected
            turn = await self._gateway.conversations.submit(caller, asked.conversation, disconnected)
            record = ResponseRecord(
                f"{RESPONSE}{uuid.uuid4().hex}",
                turn.session.id,
                turn.first,
                time.time(),
                {"fields": asked.fields, "show_tools": self._gateway.settings.openai.show_tools},
                request.conversation_id,
            )
            # It is stored while the agent works.
            stored = None if request.store is False else self._stored.add(record, turn.session)
        ignored = [*asked.ignored]
        if request.background:
            response = await self._in_background(turn, record, stored, stream=bool(request.stream))
        else:
            running = RunningAnswer(self._gateway, turn, connection, merged=False)
            response = await (self._streamed if request.stream else self._whole)(running, record, stored)
            if asked.requires_call and not running.answer.calls:
                ignored.append("tool_choice")
        return with_session(response, turn.session, ignored)

    async def _asked(self, caller: Caller, request: ResponsesRequest, session_id: str | None, chat_id: str | None) -> _Asked:
        read_request = Conversation(request, await self._referenced(caller, request))
        previous = await self._previous(caller, request)
        model_id = request.model or (previous.fields["model"] if previous is not None else None)
        if model_id is None:
            raise BadRequest("model: missing; GET /v1/models lists the models")
        model = await find_model_of_session(self._gateway, caller, model_id, session_id if previous is None else None)
        effort = effort_options(self._gateway, model, read_request.effort)
        if read_request.effort is not None and not effort:
            read_request.ignore("reasoning.effort")
        tools = usable_tools(self._gateway, model, read_request.tools)
        if read_request.tools and not tools:
            read_request.ignore("tools")
        messages, after = read_request.messages, None
        if previous is not None:
            if session_id is not None:
                read_request.ignore(SESSION)
            after, messages = await self._after(previous, request, messages)
        elif request.instructions:
            messages = (SystemMessage(content=request.instructions), *messages)
        hints = {"prompt_cache_key": request.prompt_cache_key, "user": request.user}
        conversation = ConversationRequest(
            agent=model.agent,
            messages=messages,
            options={**model.options, **effort},
            tools=tools,
            call_tools=read_request.call_tools,
            hints=frozenset(f"{name} {value}" for name, value in hints.items() if value),
            name=chat_id,
            session_id=session_id if after is None else None,
            background=after is None and is_background_task(messages),
            after=after,
            by_id=request.store is not False,
            answer=answer_format(read_request.schema, read_request.required if tools else ()),
            answer_field=read_request.schema_field,
        )
        repeated = described_tools(request.tools or ()) if tools else []
        fields = repeated_fields(request, model_id, repeated, read_request.effort if effort else None)
        return _Asked(conversation, fields, read_request.ignored, bool(read_request.required))

    async def _previous(self, caller: Caller, request: ResponsesRequest) -> StoredResponse | None:
        if request.conversation_id:
            await self._find_conversation(caller, request.conversation_id)
            return await self._stored.newest(caller, request.conversation_id, model=request.model)
        if not request.previous_response_id:
            return None
        return await self._stored.get(caller, request.previous_response_id, model=request.model)

    async def _after(
        self, previous: StoredResponse, request: ResponsesRequest, messages: tuple[Message, ...]
    ) -> tuple[EarlierAnswer, tuple[Message, ...]]:
        """What the new messages follow, and these without the calls of the previous response, which some clients repeat."""
        last = await self._stored.last_event(previous)
        if last is None:
            raise Conflict(f"previous_response_id: {previous.record.id!r} is in progress; wait for its end, or cancel it")
        after = EarlierAnswer(
            previous.session.id, agent_name(previous.fields["model"]), last, previous.instructions, request.instructions or None
        )
        if not any(isinstance(message, AssistantMessage) for message in messages):
            return after, messages
        _, answer = await self._stored.current(previous)
        known = {call.id for call in answer.calls}
        return after, tuple(message for message in messages if not _repeats(message, known))

    async def _referenced(self, caller: Caller, request: ResponsesRequest) -> Mapping[str, Item]:
        """The items that a request gives by reference, by their ids."""
        found: dict[str, Item] = {}
        # Items of several sessions may be at several nodes. Their node gets the request only where it may know the conversation.
        follows = bool(request.previous_response_id or request.conversation_id)
        only_history = follows or request_is_forwarded.get()
        for item_id in request.references():
            if item_id in found:
                continue
            response_id = response_of_item(item_id)
            if response_id is not None:
                try:
                    response = await self._stored.get(caller, response_id, model=request.model, only_history=only_history)
                    items = await self._stored.items(response)
                    found |= {item["id"]: item for item in items}
                except NoResponse:
                    pass
            if item_id not in found:
                raise NotFound(f"input: there is no item {item_id!r} here; send the item itself")
        return found

    async def _whole(self, running: RunningAnswer, record: ResponseRecord, stored: asyncio.Task[None] | None) -> Response:
        parts = await running.complete()
        failure = running.failure()
        if failure is not None:
            if stored is not None:
                self._stored.remove(record, stored)
            return failure_response(failure)
        view, now = _view(record), time.time()
        view.events(parts)
        view.end(running.answer, now)
        if stored is not None:
            self._stored.set_over(record, running.turn.session, running.last, now)
            await asyncio.shield(stored)
        running.finish()
        return _response(view.response(running.answer, now))

    async def _streamed(self, running: RunningAnswer, record: ResponseRecord, stored: asyncio.Task[None] | None) -> Response:
        await running.begun()
        failure = running.failure()
        if failure is not None:
            if stored is not None:
                self._stored.remove(record, stored)
            return failure_response(failure)
        return event_stream(
            self._frames(running, record, stored), self._gateway.keep_alive, closed=running.close, clock=self._gateway.clock
        )

    async def _frames(
        self, running: RunningAnswer, record: ResponseRecord, stored: asyncio.Task[None] | None
    ) -> AsyncIterator[bytes]:
        view = _view(record)
        events = view.begin()
        if running.silent:
            yield frames(events)
            events = []
        try:
            async with aclosing(running.parts()) as batches:
                async for parts in batches:
                    events += view.events(parts)
                    if not running.over:
                        yield frames(events)
                        events = []
            now = time.time()
            if stored is not None:
                self._stored.set_over(record, running.turn.session, running.last, now)
                await asyncio.shield(stored)
            running.finish()
            yield frames([*events, *view.end(running.answer, now)]) + DONE
        except GatewayError as error:
            yield frames([*events, view.failed(str(error))]) + DONE

    async def _in_background(
        self, turn: ConversationTurn, record: ResponseRecord, stored: asyncio.Task[None] | None, *, stream: bool
    ) -> Response:
        self._stored.run(self._read_to_end(turn, record))
        if stored is not None:
            await asyncio.shield(stored)
        found = StoredResponse(record, turn.session)
        if stream:
            return event_stream(self._events(found, -1), self._gateway.keep_alive, clock=self._gateway.clock)
        return _response((await self._stored.current(found))[0])

    async def _read_to_end(self, turn: ConversationTurn, record: ResponseRecord) -> None:
        """Read a response in the background: calls that wait for a permission are denied, as with any other."""
        running = RunningAnswer(self._gateway, turn, None, merged=False)
        try:
            await running.complete()
            running.finish()
            self._stored.set_over(record, turn.session, running.last, time.time())
        except GatewayError as error:
            log.warning("response %s does not go on: %s", record.id, error)

    # -- responses by their ids -------------------------------------------------------------------------------------------

    async def _events(self, response: StoredResponse, after: int) -> AsyncIterator[bytes]:
        async with aclosing(self._stored.events(response)) as batches:  # type: ignore[type-var]
            async for events in batches:
                if data := frames(event for event in events if event["sequence_number"] > after):
                    yield data
        yield DONE

    async def _cancel(self, response: StoredResponse) -> None:
        """Cancel the run of a response, if it is in progress."""
        session = response.session
        # Before it is known to be in progress: if another turn begins meanwhile, that is not cancelled.
        turn = session.turn_from(session.turn_began)
        if await self._stored.last_event(response) is None:
            await session.cancel(turn)

    async def _find_conversation(self, caller: Caller, conversation_id: str) -> ConversationRecord:
        record = await self._gateway.store.responses.get_conversation(conversation_id)
        if record is None or not caller.sees(record.owner):
            raise NotFound(f"there is no conversation {conversation_id!r} here; POST /v1/conversations creates one")
        return record


def _repeats(message: Message, known: set[str]) -> bool:
    """Whether a message consists of calls with these ids."""
    if not isinstance(message, AssistantMessage):
        return False
    return all(isinstance(block, ToolUseBlock) and block.tool_call_id in known for block in blocks(message.content))


def _response(response: Json) -> Response:
    return Response(as_json(response), media_type="application/json")


def _view(record: ResponseRecord) -> ResponseView:
    return ResponseView(record.id, record.created_at, record.body["fields"])


async def _input_items(response: StoredResponse) -> list[Json]:
    """The messages with which the turn of a response began, as items."""
    base = response.record.id.removeprefix(RESPONSE)
    async for entries in read(response, follow=False):
        event = entries[0].event
        if isinstance(event, TurnStart):
            return [_item(message, f"{base}i{n}") for n, message in enumerate(event.messages)]
        break
    return []


def _item(message: UserMessage | ToolMessage, name: str) -> Json:
    if isinstance(message, ToolMessage):
        return {
            "id": f"fco_{name}",
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": message.content if isinstance(message.content, str) else _parts(message),
            "status": "completed",
        }
    return {"id": f"msg_{name}", "type": "message", "role": "user", "status": "completed", "content": _parts(message)}


def _parts(message: UserMessage | ToolMessage) -> list[Json]:
    found: list[Json] = []
    for block in blocks(message.content):
        if isinstance(block, TextBlock):
            found.append({"type": "input_text", "text": block.text})
        elif isinstance(block, ImageBlock):
            found.append({"type": "input_image", "image_url": block.url, "detail": "auto"})
    return found


def _page(items: list[Json], limit: int, after: str | None) -> Json:
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise BadRequest(f"after: there is no item {after!r} in this list")
    first = ids.index(after) + 1 if after is not None else 0
    data = items[first : first + limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": first + limit < len(items),
    }


def _conversation(record: ConversationRecord) -> Json:
    return {"id": record.id, "object": "conversation", "created_at": int(record.created_at), **record.body}


def _not_found(text: str, code: str, param: str) -> Response:
    return JSONResponse(error_body("openai", 404, text, code=code, param=param), 404)

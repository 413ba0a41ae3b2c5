"""OpenAI's `POST /v1/chat/completions`: answers the last messages of a conversation, as JSON or as a stream of chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from gateway.app import Gateway
from gateway.conversations.conversations import ConversationRequest
from gateway.errors import GatewayError
from gateway.protocols.authenticated_routes import CurrentCaller, CurrentQuotas, authenticated_router
from gateway.protocols.client_connection import ClientConnection
from gateway.protocols.model_apis.answer_options import answer_format
from gateway.protocols.model_apis.chat_completions_request import ChatCompletionRequest, is_background_task, read_conversation
from gateway.protocols.model_apis.chat_completions_response import ChunkWriter, completion
from gateway.protocols.model_apis.conversation_headers import ChatHeader, SessionHeader
from gateway.protocols.model_apis.models import effort_options, find_model_of_session, usable_tools
from gateway.protocols.model_apis.running_answer import RunningAnswer, failure_response, with_session
from gateway.protocols.model_apis.vendor_requests import openai_errors
from gateway.protocols.route_metadata import BODY, example, stream_response
from gateway.protocols.sse import event_stream
from gateway.security.authentication import Caller
from gateway.security.quotas import RequestQuotas

ANSWER = stream_response(
    """With `stream`: server-sent events without names, whose data are chunks, or an object with an `error`; and the last
`[DONE]`. Lines that begin with a colon only keep the connection open.""",
    """data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"hello"},"finish_reason":null}]}

data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

""",
    {"": {"type": "object"}},
    last="[DONE]",
    json=example(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1795410529,
            "model": "echo",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }
    ),
)


def router(gateway: Gateway) -> APIRouter:
    """Return the route of a gateway."""
    routes = authenticated_router(gateway, "OpenAI: chat completions", errors=openai_errors)

    @routes.post("/v1/chat/completions", response_class=JSONResponse, responses={**openai_errors(404, *BODY, 502), 200: ANSWER})
    async def create_chat_completion(
        request: ChatCompletionRequest,
        http: Request,
        caller: CurrentCaller,
        quotas: CurrentQuotas,
        x_portico_session: SessionHeader = None,
        x_openwebui_chat_id: ChatHeader = None,
    ) -> Response:
        """Answer the last messages of a conversation. The run is cancelled if the client disconnects."""
        return await _respond(gateway, http, caller, quotas, request, x_portico_session, x_openwebui_chat_id)

    return routes


async def _respond(
    gateway: Gateway,
    http: Request,
    caller: Caller,
    quotas: RequestQuotas,
    request: ChatCompletionRequest,
    session_id: str | None,
    chat_id: str | None,
) -> Response:
    conversation, model = read_conversation(request), await find_model_of_session(gateway, caller, request.model, session_id)
    effort = effort_options(gateway, model, request.reasoning_effort)
    ignored = [*conversation.ignored, *(["reasoning_effort"] if request.reasoning_effort and not effort else [])]
    tools = usable_tools(gateway, model, conversation.tools)
    if conversation.tools and not tools:
        ignored.append("tools")
    if request.stream:
        quotas.take_stream()
    connection = ClientConnection(http)
    hints = {"prompt_cache_key": request.prompt_cache_key, "user": request.user}
    asked = ConversationRequest(
        agent=model.agent,
        messages=conversation.messages,
        options={**model.options, **effort},
        tools=tools,
        call_tools=conversation.call_tools,
        hints=frozenset(f"{name} {value}" for name, value in hints.items() if value),
        name=chat_id,
        session_id=session_id,
        background=is_background_task(conversation.messages),
        answer=answer_format(conversation.schema, conversation.required if tools else ()),
        answer_field=conversation.schema_field,
    )
    turn = await gateway.conversations.submit(caller, asked, connection.disconnected)
    running = RunningAnswer(gateway, turn, connection)
    base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": request.model}
    answered = _streamed(gateway, running, request, base) if request.stream else _whole(running, base)
    response = await answered
    if conversation.required and not running.answer.calls:
        ignored.append("tool_choice")
    return with_session(response, turn.session, ignored)


async def _whole(running: RunningAnswer, base: Mapping[str, Any]) -> Response:
    await running.complete()
    failure = running.finish()
    if failure is not None:
        return failure_response(failure)
    return Response(completion(base, running.answer), media_type="application/json")


async def _streamed(
    gateway: Gateway, running: RunningAnswer, request: ChatCompletionRequest, base: Mapping[str, Any]
) -> Response:
    await running.begun()
    if (failure := running.failure()) is not None:
        return failure_response(failure)
    include_usage = request.stream_options is not None and request.stream_options.include_usage is True
    return event_stream(
        _chunks(running, ChunkWriter(base, include_usage=include_usage)),
        gateway.keep_alive,
        closed=running.close,
        clock=gateway.clock,
    )


async def _chunks(running: RunningAnswer, writer: ChunkWriter) -> AsyncIterator[bytes]:
    before = writer.first()
    async with aclosing(running.parts()) as batches:
        try:
            async for parts in batches:
                frames = before + writer.parts(parts)
                before = b""
                if not running.over:
                    yield frames
                elif (failure := running.finish()) is not None:
                    yield frames + writer.failed(failure.text)
                else:
                    yield frames + writer.last(running.answer)
        except GatewayError as error:
            yield before + writer.failed(str(error))

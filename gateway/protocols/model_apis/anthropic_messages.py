"""Anthropic's Messages API: `POST /v1/messages`, and `/v1/messages/count_tokens`, which estimates."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import to_json

from drivers.contract.messages import ImageBlock, Message, TextBlock, ToolUseBlock, blocks
from gateway.app import Gateway
from gateway.conversations.conversations import ConversationRequest
from gateway.errors import GatewayError
from gateway.protocols.authenticated_routes import NEEDS_KEY, CurrentCaller, CurrentQuotas, authenticated_router
from gateway.protocols.client_connection import ClientConnection
from gateway.protocols.model_apis.answer_options import answer_format
from gateway.protocols.model_apis.anthropic_messages_request import Conversation, CountTokensRequest, MessagesRequest
from gateway.protocols.model_apis.anthropic_messages_response import PING, MessageView, error_frame
from gateway.protocols.model_apis.conversation_headers import ChatHeader, SessionHeader
from gateway.protocols.model_apis.models import effort_options, find_model, find_model_of_session, usable_tools
from gateway.protocols.model_apis.running_answer import RunningAnswer, failure_response, with_session
from gateway.protocols.model_apis.vendor_requests import anthropic_errors, error_body
from gateway.protocols.route_metadata import BODY, example, stream_response
from gateway.protocols.sse import event_stream
from gateway.security.authentication import Caller
from gateway.security.quotas import RequestQuotas

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
TOKENS_PER_IMAGE = 1600
"""Of the estimate: no tokenizer of a model is here. English text has about four bytes a token, and an image 1,600 at most."""

EVENTS = (
    "message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
    "error",
)  # fmt: skip
ANSWER = stream_response(
    "With `stream`: the events of a message. Their data are objects whose `type` is the name of the event.",
    """event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"echo","content":[],\
"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":0,"output_tokens":0}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":1}}

event: message_stop
data: {"type":"message_stop"}

""",
    {name: {"type": "object", "properties": {"type": {"const": name}}, "required": ["type"]} for name in EVENTS},
    json=example(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "echo",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 0},
        }
    ),
)
_ERRORS = anthropic_errors(404, *BODY, 502)


def router(gateway: Gateway) -> APIRouter:
    """Return the routes of a gateway."""
    routes = authenticated_router(gateway, "Anthropic: messages", errors=anthropic_errors)

    @routes.post("/v1/messages", response_class=JSONResponse, responses={**_ERRORS, 200: ANSWER})
    async def create_message(
        request: MessagesRequest,
        http: Request,
        caller: CurrentCaller,
        quotas: CurrentQuotas,
        x_portico_session: SessionHeader = None,
        x_openwebui_chat_id: ChatHeader = None,
    ) -> Response:
        """Answer the last message of a conversation, which continues its session. `model` is `AGENT` or `AGENT/MODEL`."""
        return await _create(gateway, request, http, caller, quotas, x_portico_session, x_openwebui_chat_id)

    @routes.post("/v1/messages/count_tokens", dependencies=[NEEDS_KEY], responses={**_ERRORS, 200: example({"input_tokens": 6})})
    async def count_tokens(request: CountTokensRequest) -> JSONResponse:
        """Estimate the tokens of a conversation by its length."""
        find_model(gateway, request.model)
        return JSONResponse(
            {"input_tokens": estimated_tokens(Conversation(request))}, headers={"X-Portico-Estimated": "input_tokens"}
        )

    return routes


async def _create(
    gateway: Gateway,
    request: MessagesRequest,
    http: Request,
    caller: Caller,
    quotas: RequestQuotas,
    session_id: str | None,
    chat_id: str | None,
) -> Response:
    if request.thread is not None:
        return _not_threaded()
    conversation, model = Conversation(request), await find_model_of_session(gateway, caller, request.model, session_id)
    effort = effort_options(gateway, model, conversation.effort)
    if conversation.effort is not None and not effort:
        conversation.ignore("output_config.effort")
    if "anthropic-beta" in http.headers:
        conversation.ignore("anthropic-beta")
    tools = usable_tools(gateway, model, conversation.tools)
    if conversation.tools and not tools:
        conversation.ignore("tools")
    if request.stream:
        quotas.take_stream()
    connection = ClientConnection(http)
    asked = ConversationRequest(
        agent=model.agent,
        messages=conversation.messages,
        options={**model.options, **effort},
        tools=tools,
        call_tools=conversation.call_tools,
        hints=frozenset((conversation.user_id,) if conversation.user_id else ()),
        name=chat_id,
        session_id=session_id,
        answer=answer_format(conversation.schema, conversation.required if tools else ()),
        answer_field=conversation.schema_field,
    )
    turn = await gateway.conversations.submit(caller, asked, connection.disconnected)
    running = RunningAnswer(gateway, turn, connection)
    view = MessageView(request.model, request.shows_thinking)
    response = await (_streamed(gateway, running, view) if request.stream else _whole(running, view))
    if conversation.required and not running.answer.calls:
        conversation.ignore("tool_choice")
    return with_session(response, turn.session, conversation.ignored)


def _not_threaded() -> Response:
    """The error after which the tool runners of Anthropic's packages (2.12.0, npm 1.12.0) send the whole conversation."""
    text = "thread: no conversation is kept under the id of a message here; leave it out, and send all messages"
    body = error_body("anthropic", 400, text)
    body["error"]["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return JSONResponse(body, 400)


async def _whole(running: RunningAnswer, view: MessageView) -> Response:
    parts = await running.complete()
    failure = running.finish()
    return JSONResponse(view.message(running.answer, parts)) if failure is None else failure_response(failure)


async def _streamed(gateway: Gateway, running: RunningAnswer, view: MessageView) -> Response:
    await running.begun()
    failure = running.failure()
    if failure is not None:
        return failure_response(failure)
    return event_stream(
        _frames(running, view), gateway.keep_alive, keep_alive_frame=PING, closed=running.close, clock=gateway.clock
    )


async def _frames(running: RunningAnswer, view: MessageView) -> AsyncIterator[bytes]:
    frames = view.start()
    if running.silent:
        yield frames
        frames = b""
    try:
        async with aclosing(running.parts()) as batches:
            async for parts in batches:
                frames += view.feed(parts)
                if running.over:
                    failure = running.finish()
                    frames += error_frame(failure.status, failure.text) if failure else view.end(running.answer)
                if frames:
                    yield frames
                    frames = b""
    except GatewayError as error:
        yield frames + error_frame(error.status, str(error))


def estimated_tokens(conversation: Conversation) -> int:
    """Return about how many tokens the text, the images, the calls and the tools of a conversation have."""
    tokens = TOKENS_PER_MESSAGE * len(conversation.messages)
    size = sum(len(to_json([tool.name, tool.description, tool.input_schema])) for tool in conversation.tools)
    for message in conversation.messages:
        images, length = _measured(message)
        tokens += TOKENS_PER_IMAGE * images
        size += length
    return tokens + -(-size // BYTES_PER_TOKEN)


def _measured(message: Message) -> tuple[int, int]:
    """The number of images, and the bytes of the text and of the calls."""
    images = length = 0
    for block in blocks(message.content):
        if isinstance(block, ImageBlock):
            images += 1
        elif isinstance(block, TextBlock):
            length += len(block.text.encode())
        elif isinstance(block, ToolUseBlock):
            length += len(to_json([block.name, block.input]))
    return images, length

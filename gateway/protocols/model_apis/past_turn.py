"""The frames of the vendors' APIs that the client of a past turn has got in a stream, by the writers of those streams. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from drivers.contract.driver_info import ToolSpec
from gateway.events.event_log import Entry
from gateway.protocols.model_apis.answer import Answer, Part, ShowTools
from gateway.protocols.model_apis.anthropic_messages_response import MessageView, error_frame
from gateway.protocols.model_apis.chat_completions_response import ChunkWriter
from gateway.protocols.model_apis.responses_output import DONE, ResponseView, frames, function_tool, repeated_fields
from gateway.protocols.model_apis.responses_request import ResponsesRequest
from gateway.protocols.model_apis.running_answer import failure_of

Api = Literal["openai-chat", "openai-responses", "anthropic-messages"]


def stream_of_turn(
    api: Api, model: str, tools: Sequence[ToolSpec], show_tools: ShowTools, turn: Iterable[Entry], number: int, created: float
) -> bytes:
    """Return the server-sent events for the events of a turn.

    `tools` are the application-side tools of the session. `number` makes the ids, `created` is in seconds since the epoch.
    """
    answer = Answer([tool.name for tool in tools], show_tools, merged=False)
    parts = [part for entry in turn for part in answer.feed((entry,))]
    if api == "openai-chat":
        return _chunks(answer, parts, model, number, created)
    if api == "anthropic-messages":
        return _events_of_message(answer, parts, model)
    return _events_of_response(answer, parts, model, tools, number, created)


def _chunks(answer: Answer, parts: Sequence[Part], model: str, number: int, created: float) -> bytes:
    writer = ChunkWriter({"id": f"chatcmpl-{number}", "created": int(created), "model": model}, include_usage=True)
    written = writer.first() + writer.parts(parts)
    if answer.end is None:
        return written
    failure = failure_of(answer)
    return written + (writer.last(answer) if failure is None else writer.failed(failure.text))


def _events_of_message(answer: Answer, parts: Sequence[Part], model: str) -> bytes:
    view = MessageView(model, shows_thinking=True)
    written = view.start() + view.feed(parts)
    if answer.end is None:
        return written
    failure = failure_of(answer)
    return written + (view.end(answer) if failure is None else error_frame(failure.status, failure.text))


def _events_of_response(
    answer: Answer, parts: Sequence[Part], model: str, tools: Sequence[ToolSpec], number: int, created: float
) -> bytes:
    request = ResponsesRequest.model_validate({"model": model, "input": ""})
    view = ResponseView(
        f"resp_{number:032}", created, repeated_fields(request, model, [function_tool(tool) for tool in tools], None)
    )
    written = frames([*view.begin(), *view.events(parts)])
    return written if answer.end is None else written + frames(view.end(answer, created + answer.duration)) + DONE

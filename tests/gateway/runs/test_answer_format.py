"""The format of answers: what the agent is asked, what is held back, and when it is asked once more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from drivers.contract.agent import GO_ON, Agent, Prompt, Reply, ToolReply
from drivers.contract.driver_info import TakesSchema
from drivers.contract.errors import AgentGone
from drivers.contract.events import (
    AgentToken,
    Error,
    MessageEnd,
    OutputEvent,
    SessionEnd,
    StructuredOutput,
    Thinking,
    ToolCall,
    Usage,
)
from drivers.contract.messages import ImageBlock, TextBlock
from drivers.runtime.clock import SYSTEM_CLOCK
from gateway.runs.answer_format import AnswerFormat, FormattedAgent

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
END = SessionEnd(exit_code=0, duration_ms=10)
USED = Usage(output_tokens=1)


class Told(Agent):
    """An agent whose runs have these events, each list read at once."""

    def __init__(self, *runs: Sequence[Sequence[OutputEvent]]) -> None:
        self.runs, self.prompts, self.interrupts = [*runs], list[Prompt](), 0
        self._reads: list[Sequence[OutputEvent]] = []

    @property
    def alive(self) -> bool:
        return True

    async def prompt(self, prompt: Prompt) -> None:
        if not self.runs:
            raise AgentGone("the agent's process has ended")
        self.prompts.append(prompt)
        self._reads = [*self.runs.pop(0)]

    async def receive(self) -> Sequence[OutputEvent]:
        return self._reads.pop(0)

    async def reply(self, reply: Reply) -> None:
        pass

    async def interrupt(self, grace: float | None = None) -> None:
        self.interrupts += 1

    async def close(self, grace: float | None = None) -> None:
        pass


def formatted(agent: Agent, expected: AnswerFormat | None, takes: TakesSchema | None = None) -> FormattedAgent:
    made = FormattedAgent(agent, lambda schema: takes, SYSTEM_CLOCK)
    made.expected = expected
    return made


async def run(agent: FormattedAgent, prompt: Prompt | None = None) -> list[OutputEvent]:
    if prompt is not None:
        await agent.prompt(prompt)
    found: list[OutputEvent] = []
    while not (found and isinstance(found[-1], SessionEnd)):
        found += await agent.receive()
    return found


def token(text: str) -> AgentToken:
    return AgentToken(text=text)


JSON = AnswerFormat(NUMBER)


async def test_without_a_format_nothing_changes() -> None:
    told = Told([[token("a")], [token("b"), END]])
    agent = formatted(told, None)
    prompt = Prompt("hi")
    await agent.prompt(prompt)
    assert await agent.receive() == [token("a")]
    assert await agent.receive() == [token("b"), END]
    assert told.prompts == [prompt]


async def test_only_the_last_message_is_held_back() -> None:
    call = ToolCall(id="c", name="lookup", status="started")
    told = Told([[token("I "), token("look."), MessageEnd()], [call], [token('{"n"'), USED], [token(": 1}"), MessageEnd(), END]])
    events = await run(formatted(told, JSON), Prompt("hi"))
    assert events == [
        token("I "), token("look."), MessageEnd(), call, USED,
        token('{"n":1}'), MessageEnd(), StructuredOutput(value={"n": 1}), END,
    ]  # fmt: skip


async def test_two_messages_in_a_row_and_one_that_is_discarded() -> None:
    told = Told([[token("First."), MessageEnd(), token("bro"), MessageEnd(discarded=True), token('{"n":2}'), END]])
    events = await run(formatted(told, JSON), Prompt("hi"))
    assert events == [
        token("First."), MessageEnd(), MessageEnd(discarded=True), token('{"n":2}'), StructuredOutput(value={"n": 2}), END,
    ]  # fmt: skip


async def test_the_agent_is_asked_once_more() -> None:
    told = Told([[token("one"), MessageEnd(), USED, END]], [[Thinking(text="Oh."), token('{"n": 1}'), END]])
    events = await run(formatted(told, JSON), Prompt("hi"))
    end = SessionEnd(exit_code=0, duration_ms=20)
    assert events == [USED, Thinking(text="Oh."), token('{"n":1}'), StructuredOutput(value={"n": 1}), end]
    first, second = told.prompts
    assert '"required":["n"]' in first.text and first.text.startswith("hi\n\nAnswer with one JSON value")
    assert second.text.startswith("Your answer does not match the JSON schema: it is not JSON\n\nAnswer with one JSON value")


async def test_the_second_answer_stays_as_it_is() -> None:
    told = Told([[token("one"), END]], [[token("two"), END]])
    *text, output, end = await run(formatted(told, JSON), Prompt("hi"))
    assert text == [token("two")] and isinstance(end, SessionEnd)
    assert output == StructuredOutput(error="the answer does not match the JSON schema: it is not JSON")


async def test_an_agent_that_is_gone_is_not_asked() -> None:
    told = Told([[token("one"), END]])
    *text, output, _ = await run(formatted(told, JSON), Prompt("hi"))
    assert text == [token("one")] and isinstance(output, StructuredOutput) and output.error is not None


async def test_a_run_that_fails_or_is_cancelled_is_not_asked() -> None:
    failed = [token("one"), Error(message="no"), SessionEnd(exit_code=1, stop_reason="error")]
    assert await run(formatted(Told([failed]), JSON), Prompt("hi")) == failed
    told = Told([[token("one"), END]], [[END]])
    agent = formatted(told, JSON)
    await agent.prompt(Prompt("hi"))
    await agent.interrupt()
    assert await run(agent) == [token("one"), END] and len(told.prompts) == 1


async def test_an_interrupt_while_the_answer_is_checked() -> None:
    told = Told([[token("one"), END]], [[token("two"), END]])
    agent = formatted(told, JSON)
    await agent.prompt(Prompt("hi"))
    reading = asyncio.create_task(agent.receive())
    await asyncio.sleep(0)
    await agent.interrupt()
    events = await reading
    # Its run is over: an interrupt would be one of the next.
    assert told.interrupts == 0 and len(told.prompts) == 1
    assert [type(event) for event in events] == [AgentToken, StructuredOutput, SessionEnd]


async def test_a_read_that_is_cancelled_loses_nothing() -> None:
    told = Told([[USED, token('{"n":1}'), END]])
    agent = formatted(told, JSON)
    await agent.prompt(Prompt("hi"))
    reading = asyncio.create_task(agent.receive())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert await run(agent) == [USED, token('{"n":1}'), StructuredOutput(value={"n": 1}), END]


async def test_how_the_schema_reaches_the_agent() -> None:
    content = (ImageBlock(url="data:image/png;base64,AA=="), TextBlock(text="hi"))
    seen: dict[Any, Prompt] = {}
    for takes in (None, "with_prompt", "with_session"):
        told = Told([[token('{"n":1}'), END]], [[token('{"n":1}'), END]])
        agent = formatted(told, JSON, takes)  # type: ignore[arg-type]
        await run(agent, Prompt(content))
        seen[takes] = told.prompts[0]
        # The driver says how such a run goes on.
        await run(agent, GO_ON)
        assert told.prompts[1].content == GO_ON.content
    assert seen["with_session"] == Prompt(content) and seen["with_prompt"] == Prompt(content, output_schema=NUMBER)
    assert seen[None].content[:2] == content and "JSON schema" in seen[None].text


async def test_a_call_that_is_required() -> None:
    call = ToolCall(id="c", name="final", status="started")
    done = ToolCall(id="c", name="final", status="completed")
    expected = AnswerFormat(tools=("final", "other"))
    told = Told([[token("no"), END]], [[token("ok"), call], [done, token("text"), END]], [[token("still no"), END]])
    agent = formatted(told, expected)
    await agent.prompt(Prompt("hi"))
    assert await agent.receive() == [token("ok"), call]
    await agent.reply(ToolReply("c", "result"))
    # After the result another call is required, and asked for once.
    assert await run(agent) == [done, token("still no"), SessionEnd(exit_code=0, duration_ms=30)]
    assert told.prompts[1].text == "You have not called a tool. Answer by a call of one of the tools `final` or `other`."

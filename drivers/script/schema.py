"""The format of a scenario file: one type per kind of step, from which the checks and docs/scenario.schema.json are made.

The types are dictionaries, because a field that is left out has no value. `python -m drivers.script.schema` prints the schema.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, Literal, Required, TypeVar

from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    with_config,
)
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import TypedDict  # pydantic takes that of `typing` from Python 3.12 on only

from drivers.script.program.play import PLACEHOLDER

PLACEHOLDERS = (
    "prompt", "turn", "images", "system", "model", "last_result", "steered", "additional_directories",
    "options.scenario", "options.pace", "options.token",
)  # fmt: skip
DAY, GIB = 86_400, 1024**3
ONE_KEY: dict[str, Any] = {"minProperties": 1, "maxProperties": 1}
LAST_STEPS = frozenset({"stop", "exit", "hang"})
ENDS = {"result": "a result", "error": "an error", "client": "a client"}
"""Fields of a call, of which one ends it, as they are called in errors."""
MESSAGE_OF_ERROR: dict[str, Any] = {"if": {"required": ["message"]}, "then": {"properties": {"reason": {"const": "error"}}}}
Kind = TypeVar("Kind")


def refusal(text: str, inside: str = "") -> PydanticCustomError:
    """Return an error about a value, or about what is `inside` it, by its path."""
    return PydanticCustomError("refused", "{text}", {"text": text, "inside": inside})


def described(value: Any) -> str:
    """Return a value for a message: short, and recognisable."""
    if isinstance(value, (dict, list)):
        return f"an object with {', '.join(value) or 'no keys'}" if isinstance(value, dict) else f"a list of {len(value)}"
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else shown[:57] + "..."


@dataclass(frozen=True)
class Bare:
    """What an object may be replaced by: a bare value of one of its fields, or `true`, if it needs no field."""

    field: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._object, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shape = handler.resolve_ref_schema(fields := handler(schema))
        bare = shape["properties"][self.field] if self.field else {"const": True}
        return {"anyOf": [fields, bare], "description": shape["description"]}

    def _object(self, value: Any) -> Any:
        return value if isinstance(value, dict) else {self.field: value} if self.field else {} if value is True else value


def _expected(text: str) -> WrapValidator:
    """Say what a value must be, whatever is wrong with it."""

    def check(value: Any, inner: ValidatorFunctionWrapHandler) -> Any:
        try:
            # 1.0 is a whole number.
            return inner(int(value) if isinstance(value, float) and value.is_integer() else value)
        except ValueError:
            raise refusal(f"must be {text}; it is {described(value)}") from None

    return WrapValidator(check)


def _one_key(needs: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, dict) or len(value) != 1:
            raise refusal(needs.format(described(value)))
        return value

    return check


def _templates(value: Any, inside: str = "") -> Any:
    """Check the placeholders of all texts in any JSON."""
    places: Iterable[tuple[str, Any]] = ()
    if isinstance(value, str):
        for name in filter(None, (found.group(3) for found in PLACEHOLDER.finditer(value))):
            if name not in PLACEHOLDERS and not name.startswith(("results.", "choices.")):
                known = ", ".join((*PLACEHOLDERS, "results.ID", "choices.ID"))
                raise refusal(f"{{{name}}} is not known; known are {known}; for a brace itself write {{{{", inside)
    elif isinstance(value, list):
        places = ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, dict):
        places = ((f".{key}", item) for key, item in value.items())
    for place, item in places:
        _templates(item, inside + place)
    return value


def _numbered(value: str) -> str:
    _templates(value.replace("{n}", ""))
    return value


def _expression(value: str) -> str:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise refusal(f"not a regular expression: {error}") from error
    return value


def _none_after_the_last(steps: list[Any]) -> list[Any]:
    for number, step in enumerate(steps[:-1]):
        if LAST_STEPS & set(step):
            raise refusal(f"is never played, because {next(iter(step))} before it ends the turn; remove one", f"[{number + 1}]")
    return steps


def _ids(steps: list[Any]) -> Iterator[str]:
    for fields in (fields for step in steps for fields in step.values()):
        yield from [fields["id"]] if "id" in fields else []
        yield from _ids(fields.get("calls", []) + fields.get("steps", []))


def _different_ids(turn: Any) -> Any:
    if twice := [call for call, times in Counter(_ids(turn["steps"])).items() if times > 1]:
        raise refusal(f"the id {twice[0]!r} is there twice; ids must differ within a turn")
    return turn


def _one_end(call: Any) -> Any:
    ends = [article for end, article in ENDS.items() if end in call]
    if len(ends) > 1:
        raise refusal(f"has {' and '.join(ends)}; a call ends in one of them")
    return call


def _message_of_error(stop: Any) -> Any:
    if "message" in stop and stop["reason"] != "error":
        raise refusal("only goes with the reason error", ".message")
    return stop


Count = Annotated[int, Field(ge=0, le=GIB), _expected(f"a whole number, 0 to {GIB}")]
Size = Annotated[int, Field(ge=1, le=GIB), _expected(f"a whole number, 1 to {GIB}")]
LineSize = Annotated[int, Field(ge=32, le=GIB), _expected(f"a whole number, 32 to {GIB}")]
Code = Annotated[int, Field(ge=0, le=255), _expected("a whole number, 0 to 255")]
Amount = Annotated[float, Field(ge=0, le=GIB, allow_inf_nan=False), _expected(f"a number, 0 to {GIB}")]
Seconds = Annotated[float, Field(ge=0, le=DAY, allow_inf_nan=False), _expected(f"a number of seconds, 0 to {DAY}")]
Flag = Annotated[bool, _expected("true or false")]
Word = Annotated[str, Field(min_length=1), _expected("a text that is not empty")]
Expression = Annotated[Word, AfterValidator(_expression)]
Template = Annotated[str, _expected("a text"), AfterValidator(_templates)]
Numbered = Annotated[str, _expected("a text"), AfterValidator(_numbered)]
OneLine = Annotated[str, Field(pattern=r"^[^\n]*$"), _expected("a text without a line break"), AfterValidator(_templates)]
CommandName = Annotated[
    str,
    Field(pattern=r"^[^/\n][^\n]*$"),
    Predicate(lambda name: bool(name.strip())),
    _expected("a command's name on one line, without the / before it"),
    AfterValidator(_templates),
]
InFolder = Annotated[
    str,
    Field(min_length=1),
    Predicate(lambda path: not path.startswith("/") and ".." not in path.split("/") and "\0" not in path),
    _expected("a path in the agent's working folder, without .."),
]
TemplateJson = Annotated[Any, AfterValidator(_templates)]
TemplateObject = Annotated[dict[str, Any], AfterValidator(_templates)]
OneStep = Annotated[
    Kind,
    BeforeValidator(_one_key('must be an object with one key, the step, as in {{"delay": 1}}; it is {}')),
    Field(json_schema_extra=ONE_KEY),
]
Steps = Annotated[list[OneStep[Kind]], AfterValidator(_none_after_the_last)]


class Text(TypedDict, total=False):
    """A text that is streamed in deltas."""

    text: Required[Annotated[Template, Field(description="The text.")]]
    chunk: Annotated[Size, Field(description="Characters of one delta; 20 if left out.")]
    every: Annotated[Seconds, Field(description="Seconds between two deltas; 0 if left out.")]


class MessageEnd(TypedDict, total=False):
    """The message is complete; text that follows belongs to the next."""

    discarded: Annotated[Flag, Field(description="Whether the agent lost the message half-way and starts it again.")]


class Compact(TypedDict, total=False):
    """The agent compacts the conversation."""

    summary: Required[Annotated[Template, Field(description="The summary that is left of the conversation.")]]
    kept: Annotated[Count, Field(description="How many of the last messages are left as they are; 0 if left out.")]


class Usage(TypedDict, total=False):
    """Tokens of this turn, 0 where left out, and their price."""

    input_tokens: Annotated[Count, Field(description="Tokens of the input.")]
    output_tokens: Annotated[Count, Field(description="Tokens of the output.")]
    cache_read: Annotated[Count, Field(description="Tokens of the input that were read from a cache.")]
    cache_write: Annotated[Count, Field(description="Tokens of the input that were written to a cache.")]
    reasoning_tokens: Annotated[Count, Field(description="Tokens of the reasoning.")]
    cost_usd: Annotated[Amount, Field(description="The price in US dollars.")]


class PlanEntry(TypedDict, total=False):
    """One entry of a plan."""

    content: Required[Annotated[Template, Field(description="What is to be done.")]]
    priority: Annotated[Literal["high", "medium", "low"], Field(description="`medium` if left out.")]
    status: Annotated[Literal["pending", "in_progress", "completed"], Field(description="`pending` if left out.")]


class Plan(TypedDict):
    """The agent's whole plan."""

    entries: Annotated[list[PlanEntry], Field(description="All entries, in order.")]


class SlashCommand(TypedDict, total=False):
    """One slash command."""

    name: Required[Annotated[CommandName, Field(description="Its name, without the `/`.")]]
    description: Annotated[Template, Field(description="What it does.")]
    hint: Annotated[Template, Field(description="What may follow the name.")]


class Commands(TypedDict):
    """All slash commands that there are from now on."""

    commands: Annotated[list[SlashCommand], Field(description="All commands.")]


class Title(TypedDict):
    """What the agent calls the session."""

    text: Annotated[Template, Field(description="The title; empty takes it back.")]


class WriteFile(TypedDict):
    """Writes a text file in the working folder."""

    path: Annotated[InFolder, Field(description="Where, in the working folder.")]
    text: Annotated[Template, Field(description="What is written.")]


class ReadByClient(TypedDict, total=False):
    """The session's client reads a text file."""

    path: Required[Annotated[Template, Field(description="The path, relative to the working folder.")]]
    line: Annotated[Size, Field(description="The first line, from 1.")]
    limit: Annotated[Size, Field(description="How many lines at most.")]


class WriteByClient(TypedDict):
    """The session's client writes a text file."""

    path: Annotated[Template, Field(description="The path, relative to the working folder.")]
    text: Annotated[Template, Field(description="What is written.")]


class Terminal(TypedDict, total=False):
    """A terminal of the session's client: made, shown in the call, waited for or killed, read and released."""

    command: Required[Annotated[Template, Field(description="The command; how one without `args` is run is up to the client.")]]
    args: Annotated[list[Template], Field(description="Its arguments.")]
    env: Annotated[TemplateObject, Field(description="Its variables.")]
    cwd: Annotated[Template, Field(description="Its folder, relative to the working folder.")]
    output_bytes: Annotated[Count, Field(description="How many bytes of output the client keeps.")]
    kill_after: Annotated[Seconds, Field(description="Kill it after so many seconds, instead of waiting for its end.")]


class OfClient(TypedDict, total=False):
    """What the session's client does for a call, over the Agent Client Protocol: one of these."""

    read_file: Annotated[ReadByClient, Bare("path")]
    write_file: WriteByClient
    terminal: Annotated[Terminal, Bare("command")]


class Choice(TypedDict):
    """One answer of the agent's own to its request for permission."""

    id: Annotated[Template, Field(description="What `{choices.ID}` is if the client makes this choice.")]
    name: Annotated[Template, Field(description="What the client displays.")]
    kind: Annotated[
        Literal["allow_once", "allow_always", "reject_once", "reject_always"], Field(description="What the choice means.")
    ]


CallId = Annotated[
    Template, Field(description="Its id, the only one of its kind in the turn, for `{results.ID}`; made up if left out.")
]
Input = Annotated[TemplateObject, Field(description="The input of the call.")]
Detail = Annotated[Template, Field(description="What clients display beside the name.")]


class ToolCall(TypedDict, total=False):
    """A call of the agent's own tool. Only what is written here happens."""

    name: Required[Annotated[Word, Field(description="The tool: lookup, write_note, shell, or one that is made up.")]]
    id: CallId
    input: Input
    result: Annotated[TemplateJson, Field(description='The result, any JSON; "done" if left out.')]
    error: Annotated[Template, Field(description="The error with which the call fails.")]
    detail: Detail
    ask: Annotated[Flag, Field(description="Whether the call asks for permission although the session trusts the tool.")]
    question: Annotated[Flag, Field(description="Whether the call is a question to the user, whose answer is the result.")]
    takes: Annotated[Seconds, Field(description="How many seconds it runs; 0 if left out.")]
    write_file: Annotated[WriteFile, Field(description="A file that the call writes, only if it runs.")]
    client: Annotated[
        OfClient,
        AfterValidator(_one_key("needs read_file or write_file or terminal")),
        Field(description="What the session's client does once the call may run.", json_schema_extra=ONE_KEY),
    ]
    choices: Annotated[list[Choice], Field(description="Further answers to the request for permission.")]


class AppTool(TypedDict, total=False):
    """A call of a tool of the application; waits for its result."""

    name: Required[Annotated[Word, Field(description="The tool.")]]
    id: CallId
    input: Input
    detail: Detail


class CallStep(TypedDict, total=False):
    """A call among those of `parallel`."""

    tool_call: Annotated[
        ToolCall,
        AfterValidator(_one_end),
        Field(json_schema_extra={"not": {"anyOf": [{"required": both} for both in combinations(ENDS, 2)]}}),
    ]
    app_tool: AppTool


class Parallel(TypedDict):
    """Calls that are made at once."""

    calls: Annotated[list[OneStep[CallStep]], Field(description="The calls.")]


class Delay(TypedDict):
    """Waits, whatever the pace."""

    seconds: Annotated[Seconds, Field(description="How long.")]


class WaitForFile(TypedDict):
    """Waits until a file is in the working folder, whatever the pace."""

    path: Annotated[InFolder, Field(description="The file.")]


class Hook(TypedDict, total=False):
    """A hook of a plugin."""

    name: Required[Annotated[Template, Field(description="Its name.")]]
    id: Annotated[Template, Field(description="Its id; made up if left out.")]
    status: Annotated[Template, Field(description="Its status; `completed` if left out.")]


class Stderr(TypedDict):
    """A line of standard error."""

    line: Annotated[OneLine, Field(description="The line.")]


class RawLine(TypedDict):
    """A raw line of standard output, such as junk that is not JSON."""

    line: Annotated[OneLine, Field(description="The line.")]


class Exit(TypedDict, total=False):
    """Ends the process at once, by an exit code or a signal."""

    code: Annotated[Code, Field(description="The exit code.")]
    signal: Annotated[Literal["SIGKILL", "SIGTERM", "SIGABRT", "SIGSEGV"], Field(description="The signal.")]


class Hang(TypedDict, total=False):
    """Does nothing until it is ended; what it ignores is false if left out."""

    ignore_interrupt: Annotated[Flag, Field(description="Whether it ignores interrupts.")]
    ignore_eof: Annotated[Flag, Field(description="Whether it ignores the end of its input.")]
    ignore_term: Annotated[Flag, Field(description="Whether it ignores SIGTERM, and the end of its input.")]


class Spawn(TypedDict, total=False):
    """Leaves a process behind that sleeps."""

    seconds: Required[Annotated[Seconds, Field(description="How long it sleeps.")]]
    new_session: Annotated[Flag, Field(description="Whether it has a session of its own.")]
    hold_stdout: Annotated[Flag, Field(description="Whether it holds the agent's standard output.")]
    orphan: Annotated[Flag, Field(description="Whether it has no parent; `hold_stdout` has no effect then.")]
    empty_env: Annotated[Flag, Field(description="Whether its environment is empty.")]
    pid_file: Annotated[InFolder, Field(description="A file that its process id is written to.")]


class InnerStep(CallStep, total=False):
    """A step of a nested agent."""

    parallel: Annotated[Parallel, Bare("calls")]
    delay: Annotated[Delay, Bare("seconds")]
    wait_for_file: Annotated[WaitForFile, Bare("path")]
    hook: Annotated[Hook, Bare("name")]


class StartStep(TypedDict, total=False):
    """A step before the agent takes a prompt."""

    delay: Annotated[Delay, Bare("seconds")]
    wait_for_file: Annotated[WaitForFile, Bare("path")]
    stderr: Annotated[Stderr, Bare("line")]
    line: Annotated[RawLine, Bare("line")]
    exit: Annotated[Exit, AfterValidator(_one_key("needs code or signal")), Field(json_schema_extra=ONE_KEY), Bare("code")]
    hang: Annotated[Hang, Bare()]
    spawn: Annotated[Spawn, Bare("seconds")]
    write_file: WriteFile
    commands: Annotated[Commands, Bare("commands")]
    title: Annotated[Title, Bare("text")]


class Subagent(TypedDict, total=False):
    """A nested agent: it starts, plays its steps and ends."""

    label: Required[Annotated[Template, Field(description="What clients display.")]]
    id: Annotated[Template, Field(description="Its id; made up if left out.")]
    status: Annotated[Literal["completed", "failed"], Field(description="How it ends; `completed` if left out.")]
    steps: Annotated[Steps[InnerStep], Field(description="What it does, in order.")]


class BigLine(TypedDict):
    """One `agent_token` whose line has that many bytes without its line end."""

    bytes: Annotated[LineSize, Field(description="The length of the line.")]


class Events(TypedDict, total=False):
    """Many `agent_token` events, as fast as possible."""

    count: Required[Annotated[Count, Field(description="How many.")]]
    text: Annotated[Numbered, Field(description="The text of each; `{n}` counts from 0.")]


class Env(TypedDict):
    """Says what a variable of the agent's environment is."""

    name: Annotated[Word, Field(description="The variable; `*` lists the names of all.")]


class Argv(TypedDict):
    """Says the agent's own command line, as a JSON list."""


class Remember(TypedDict):
    """Says all earlier user texts of the session, as a JSON list."""


class Stop(TypedDict, total=False):
    """Ends the turn."""

    reason: Required[Annotated[Literal["end_turn", "max_tokens", "refusal", "error"], Field(description="Why it ends.")]]
    message: Annotated[Template, Field(description="The message of the reason `error`.")]


class Step(InnerStep, StartStep, total=False):
    """A step: an object with one key, its name."""

    text: Annotated[Text, Bare("text")]
    thinking: Annotated[Text, Bare("text")]
    message_end: Annotated[MessageEnd, Bare()]
    compact: Annotated[Compact, Bare("summary")]
    usage: Annotated[Usage, Bare()]
    plan: Annotated[Plan, Bare("entries")]
    subagent: Annotated[Subagent, Bare("label")]
    big_line: Annotated[BigLine, Bare("bytes")]
    events: Annotated[Events, Bare("count")]
    env: Annotated[Env, Bare("name")]
    argv: Annotated[Argv, Bare()]
    remember: Annotated[Remember, Bare()]
    stop: Annotated[Stop, AfterValidator(_message_of_error), Field(json_schema_extra=MESSAGE_OF_ERROR), Bare("reason")]


class Turn(TypedDict, total=False):
    """One answer to a prompt."""

    when: Annotated[Expression, Field(description="A regular expression, searched for in the prompt's text.")]
    steps: Required[Annotated[Steps[Step], Field(description="What the agent does, in order.")]]
    comment: Annotated[Any, Field(description="For people.")]


@with_config(extra="forbid", strict=True)
class Scenario(TypedDict, total=False):
    """A scenario of the script driver of Portico: docs/script-driver.md."""

    turns: Required[
        Annotated[
            list[Annotated[Turn, AfterValidator(_different_ids)]],
            Field(min_length=1, description="The first turn whose `when` matches answers a prompt, else those without in order."),
        ]
    ]
    start: Annotated[Steps[StartStep], Field(description="Steps that are played before the agent takes a prompt.")]
    model: Annotated[Word, Field(description="The name of the model that the agent reports; `script` if left out.")]
    comment: Annotated[Any, Field(description="For people.")]
    editor_schema: Annotated[Any, Field(alias="$schema", description="The address of this schema, for editors.")]


SCENARIO = TypeAdapter[Scenario](Scenario)


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a scenario file."""
    return {"$schema": _Generator.schema_dialect, **SCENARIO.json_schema(schema_generator=_Generator)}


if __name__ == "__main__":
    json.dump(json_schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")

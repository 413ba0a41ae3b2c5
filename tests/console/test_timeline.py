"""The timeline: events of a log become the items of a conversation, whichever CLI they came from and however they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.console.console_daemon import ConsoleDaemon
from tests.console.conversations import MODULE, module_page

RECORDED = Path(__file__).parent.parent / "transcripts" / "golden"
LOGS = sorted(RECORDED.glob("*/*.events.jsonl"))

TIMELINE = (
    "async ([entries, seeds, sizes]) => {"
    f" const {{ Timeline, keep }} = await import('{MODULE}timeline.js');"
    """
    const timeline = new Timeline(seeds);
    let at = 0;
    for (const size of sizes ?? [entries.length]) { timeline.append(entries.slice(at, at + size)); at += size; }
    timeline.append(entries.slice(at));
    const kept = [];
    for (const entry of entries) keep(kept, entry);
    const again = new Timeline(seeds).append(kept);
    const { context, usage, running, waiting, model, title, rateLimit } = timeline;
    return { items: timeline.items, again: again.items, kept: kept.length,
      context, usage, running, waiting, model, title, rateLimit };
  }"""
)


@pytest.fixture(scope="module")
def page(browser: Browser, daemon: ConsoleDaemon) -> Iterator[Page]:
    with module_page(browser, daemon.url) as found:
        yield found


def timeline(page: Page, events: list[dict[str, Any]], *, seeds: Any = (), sizes: list[int] | None = None) -> dict[str, Any]:
    """Return the timeline of events with the numbers from 1."""
    entries = [{"id": number, "event": event} for number, event in enumerate(events, 1)]
    return dict(page.evaluate(TIMELINE, [entries, list(seeds), sizes]))


def items_of(page: Page, *events: dict[str, Any], kind: str | None = None) -> list[dict[str, Any]]:
    found = timeline(page, list(events))["items"]
    return [item for item in found if kind is None or item["type"] == kind]


def prompt(text: str) -> dict[str, Any]:
    return {"kind": "turn_start", "messages": [{"role": "user", "content": text}]}


def started(call: str, name: str = "Bash", **fields: Any) -> dict[str, Any]:
    return {"kind": "tool_call", "id": call, "name": name, "status": "started", "input": {}, **fields}


def result(call: str, output: Any = "ok", **fields: Any) -> dict[str, Any]:
    return {"kind": "tool_result", "tool_call_id": call, "output": output, **fields}


END = {"kind": "session_end", "exit_code": 0, "duration_ms": 1200, "stop_reason": "end_turn"}


def calls_in(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for item in items:
        if item["type"] == "tool":
            found += [item, *calls_in(item["children"])]
    return found


@pytest.mark.parametrize("log", LOGS, ids=lambda path: f"{path.parent.name}-{path.name.split('.')[0]}")
def test_recorded_log(page: Page, log: Path) -> None:
    events = [json.loads(line) for line in log.read_text().splitlines()]
    found = timeline(page, [prompt("go"), *events])
    items = found["items"]
    text = "".join(event["text"] for event in events if event["kind"] == "agent_token")
    shown = "".join(item["text"] for item in items if item["type"] == "text")
    assert "".join(shown.split()) == "".join(text.split())
    thought = "".join(event["text"] for event in events if event["kind"] == "thinking")
    assert "".join("".join(item["text"] for item in items if item["type"] == "thinking").split()) == "".join(thought.split())
    ids = {event["id"] for event in events if event["kind"] == "tool_call"}
    calls = calls_in(items)
    assert {call["id"] for call in calls} >= ids
    for event in events:
        if event["kind"] == "tool_result":
            # Of several calls with one id, such as in several turns of a recording, one has it.
            assert any(call["result"] == event["output"] for call in calls if call["id"] == event["tool_call_id"])
    if events[-1]["kind"] == "session_end":
        assert not found["running"] and items[-1]["type"] == "end"
        assert not [call for call in calls if call["state"] in ("running", "writing", "waiting")]
        assert not [item for item in items if item.get("streaming")]
    assert found["usage"]["output"] == sum(event.get("output_tokens", 0) for event in events if event["kind"] == "usage")
    assert len({item["key"] for item in items}) == len(items)
    # One at a time, and joined as they are kept, the same events give the same items.
    single = timeline(page, [prompt("go"), *events], sizes=[1] * (len(events) + 1))
    assert single["items"] == items
    assert [{**item, "id": None} for item in found["again"]] == [{**item, "id": None} for item in items]


def test_deltas_are_one_item_until_a_call(page: Page) -> None:
    found = items_of(
        page,
        prompt("hi"),
        {"kind": "thinking", "text": "Let "},
        {"kind": "thinking", "text": "me."},
        {"kind": "agent_token", "text": "One "},
        {"kind": "agent_token", "text": "two"},
        started("c1"),
        {"kind": "tool_output", "tool_call_id": "c1", "text": "out"},
        {"kind": "tool_output", "tool_call_id": "c1", "text": "put"},
        result("c1", "output"),
        {"kind": "agent_token", "text": "three"},
    )
    assert [(item["type"], item.get("text", item.get("output"))) for item in found] == [
        ("user", "hi"),
        ("thinking", "Let me."),
        ("text", "One two"),
        ("tool", "output"),
        ("text", "three"),
    ]
    assert [item.get("streaming") for item in found] == [None, False, False, None, True]


def test_only_what_changed_is_another_object(page: Page) -> None:
    same = page.evaluate(
        "async () => {"
        f" const {{ Timeline }} = await import('{MODULE}timeline.js');"
        """
        const timeline = new Timeline();
        const entry = (id, event) => ({ id, event });
        timeline.append([entry(1, { kind: "turn_start", messages: [{ role: "user", content: "x" }] }),
          entry(2, { kind: "tool_call", id: "c", name: "Bash", status: "started" }),
          entry(3, { kind: "agent_token", text: "a" })]);
        const before = timeline.items;
        timeline.append([entry(4, { kind: "agent_token", text: "b" })]);
        const after = timeline.items;
        return [before !== after, ...after.map((item, index) => item === before[index])];
      }"""
    )
    assert same == [True, True, True, False]


def test_a_discarded_message(page: Page) -> None:
    found = items_of(
        page,
        prompt("hi"),
        {"kind": "agent_token", "text": "half"},
        {"kind": "message_end", "discarded": True},
        {"kind": "agent_token", "text": "whole"},
        {"kind": "message_end"},
        END,
        kind="text",
    )
    assert [(item["text"], item.get("discarded", False)) for item in found] == [("half", True), ("whole", False)]


def test_calls_of_a_subagent_are_inside_its_call(page: Page) -> None:
    found = items_of(
        page,
        prompt("hi"),
        started("a", "Agent"),
        {"kind": "subagent", "id": "a", "status": "started", "label": "Look"},
        started("b", "Bash", parent_id="a"),
        started("c", "Agent", parent_id="a"),
        started("d", "Read", parent_id="c"),
        result("d", "text", parent_id="c"),
        result("b", "no", is_error=True, parent_id="a", exit_code=2),
        result("a", "report"),
        {"kind": "subagent", "id": "a", "status": "completed", "label": "Look"},
        kind="tool",
    )
    assert len(found) == 1
    outer = found[0]
    assert outer["subagent"] == {"label": "Look", "status": "completed"} and outer["state"] == "completed"
    assert [(child["id"], child["state"]) for child in outer["children"]] == [("b", "failed"), ("c", "running")]
    assert outer["children"][0]["exitCode"] == 2
    assert [(child["id"], child["result"]) for child in outer["children"][1]["children"]] == [("d", "text")]


def test_a_call_of_a_subagent_that_waits_for_the_client_is_inside_its_call_too(page: Page) -> None:
    asked = {"kind": "awaiting", "calls": [{"id": "b", "wants": "permission"}]}
    [outer] = items_of(page, prompt("hi"), started("a", "Agent"), started("b", "Bash", subagent_id="a"), asked, kind="tool")
    assert outer["id"] == "a" and [(child["id"], child["state"]) for child in outer["children"]] == [("b", "waiting")]


def test_calls_that_wait_and_their_answers(page: Page) -> None:
    asked = [
        prompt("hi"),
        started("a"),
        started("b"),
        started("c", "get_weather"),
        {
            "kind": "awaiting",
            "calls": [{"id": "a", "wants": "permission"}, {"id": "b", "wants": "permission"}, {"id": "c", "wants": "result"}],
        },
    ]
    found = timeline(page, asked)
    assert found["waiting"] and [(item["state"], item.get("wants")) for item in found["items"][1:]] == [
        ("waiting", "permission"),
        ("waiting", "permission"),
        ("waiting", "result"),
    ]
    answers = {
        "kind": "turn_start",
        "messages": [{"role": "tool", "toolCallId": "c", "content": "Sunny"}],
        "permissions": [{"call_id": "a", "granted": True}, {"call_id": "b", "granted": False, "reason": "No"}],
    }
    denied = result("b", "Tool call denied: No", is_error=True)
    found = timeline(page, [*asked, answers, result("a", "ran"), denied, END])
    assert not found["waiting"]
    a, b, c = found["items"][1:4]
    assert (a["state"], a["result"], a["decision"]["granted"]) == ("completed", "ran", True)
    assert (b["state"], b["decision"]["reason"]) == ("denied", "No")
    assert (c["state"], c["result"], c["byClient"]) == ("completed", "Sunny", True)


def test_a_message_cancels_what_waits(page: Page) -> None:
    found = items_of(
        page, prompt("hi"), started("a"), {"kind": "awaiting", "calls": [{"id": "a", "wants": "permission"}]}, prompt("no, this")
    )
    assert [item["type"] for item in found] == ["user", "tool", "user"]
    assert found[1]["state"] == "cancelled"


def test_a_turn_that_was_cut_off(page: Page) -> None:
    found = items_of(
        page,
        prompt("hi"),
        {"kind": "agent_token", "text": "I beg"},
        started("a"),
        prompt("again"),
        {"kind": "agent_token", "text": "Yes"},
        END,
    )
    assert [item["type"] for item in found] == ["user", "text", "tool", "gap", "user", "text", "end"]
    assert found[2]["state"] == "cancelled"


def test_writing_a_call_is_no_call(page: Page) -> None:
    written = [prompt("hi"), {"kind": "tool_input", "id": "a", "name": "Write", "input": {"file_path": "x"}}]
    assert items_of(page, *written)[1]["state"] == "writing"
    assert items_of(page, *written, started("a", "Write", input={"file_path": "x", "content": "y"}))[1]["state"] == "running"
    assert items_of(page, *written, END)[1]["state"] == "abandoned"


def test_usage_of_a_run_is_a_sum_and_begins_anew(page: Page) -> None:
    used = {"kind": "usage", "input_tokens": 100, "output_tokens": 10, "cache_read": 5, "cache_write": 0}
    found = timeline(
        page,
        [
            prompt("a"),
            used,
            {**used, "cost_usd": 0.5},
            {"kind": "context_use", "used": 40, "size": 100},
            END,
            prompt("b"),
            used,
            END,
        ],
    )
    first, second = [item for item in found["items"] if item["type"] == "end"]
    assert first["usage"]["input"] == 200 and first["usage"]["cost"] == 0.5 and first["context"] == {"used": 40, "size": 100}
    assert second["usage"]["input"] == 100 and second["usage"]["cost"] is None and second["context"] is None
    assert found["usage"]["input"] == 300 and found["context"] == {"used": 40, "size": 100}


def test_an_error_of_a_run(page: Page) -> None:
    failed = {"kind": "session_end", "exit_code": 1, "stop_reason": "error"}
    found = items_of(page, prompt("a"), {"kind": "error", "message": "429", "resets_at": 1_800_000_000}, failed)
    assert [item["type"] for item in found] == ["user", "error", "end"]
    assert found[1]["resetsAt"] == 1_800_000_000 and found[2]["stopReason"] == "error"
    # A run without words of its own still says that it has failed.
    assert [item["type"] for item in items_of(page, prompt("a"), {**failed, "exit_code": 139})] == ["user", "error", "end"]


def test_notices(page: Page) -> None:
    found = items_of(
        page,
        prompt("a"),
        {"kind": "rate_limit", "status": "allowed"},
        {"kind": "rate_limit", "status": "warning", "utilization": 0.9},
        {"kind": "rate_limit", "status": "rejected", "waiting": True, "resets_at": 1_800_000_000},
        {"kind": "compacted", "summary": "S", "kept": 2},
        {"kind": "mode", "mode": "plan"},
        {"kind": "hook", "id": "h", "name": "fmt", "status": "started"},
        {"kind": "hook", "id": "h", "name": "fmt", "status": "completed"},
        {"kind": "stdout", "line": "one"},
        {"kind": "stdout", "line": "two"},
        {"kind": "stderr", "line": "three"},
        {"kind": "gap", "from": 4, "to": 6, "reason": "lost"},
        {"kind": "steered", "message": {"role": "user", "content": "also"}},
        {"kind": "something_new", "x": 1},
    )
    assert [(item["type"], item.get("status", item.get("text"))) for item in found[1:]] == [
        ("rate_limit", "rejected"),
        ("compacted", None),
        ("mode", None),
        ("hook", "completed"),
        ("raw", "one\ntwo"),
        ("raw", "three"),
        ("gap", "lost"),
        ("user", "also"),
    ]
    assert found[1]["waiting"] and found[-1]["steered"]


def test_a_plan_is_replaced_in_place(page: Page) -> None:
    step = {"content": "A", "priority": "medium", "status": "pending"}
    found = items_of(
        page,
        prompt("a"),
        {"kind": "plan", "entries": [step]},
        started("c"),
        {"kind": "plan", "entries": [{**step, "status": "completed"}]},
        END,
    )
    assert [item["type"] for item in found] == ["user", "plan", "tool", "end"]
    assert found[1]["entries"][0]["status"] == "completed"


def test_stored_messages_come_first(page: Page) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image", "url": "data:image/png;base64,AA=="}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "toolCallId": "t", "name": "Read", "input": {"path": "a"}},
            ],
        },
        {"role": "tool", "toolCallId": "t", "content": "text"},
        {"role": "assistant", "content": "Done."},
    ]
    seeds = [{"position": position, "message": message} for position, message in enumerate(messages)]
    found = timeline(page, [prompt("go on"), {"kind": "agent_token", "text": "Yes"}, END], seeds=seeds)["items"]
    assert [item["type"] for item in found] == ["system", "user", "thinking", "text", "tool", "text", "user", "text", "end"]
    assert found[4]["result"] == "text" and found[4]["state"] == "completed"
    assert found[1]["position"] == 1


def test_a_log_that_begins_in_the_middle(page: Page) -> None:
    found = timeline(
        page,
        [
            result("lost", "late"),
            {"kind": "tool_call", "id": "other", "name": "Bash", "status": "failed"},
            {"kind": "tool_output", "tool_call_id": "third", "text": "x"},
            {"kind": "awaiting", "calls": [{"id": "fourth", "wants": "result"}]},
            END,
        ],
    )
    assert [item.get("state") for item in found["items"]] == ["completed", "failed", "ended", "ended", None]


def test_the_agents_process_ends_while_calls_wait(page: Page) -> None:
    asked = [
        prompt("hi"),
        started("a"),
        {"kind": "awaiting", "calls": [{"id": "a", "wants": "permission"}]},
        {"kind": "error", "message": "ended"},
    ]
    found = timeline(page, asked)
    assert [item["type"] for item in found["items"]] == ["user", "tool", "paused"]
    assert found["waiting"] and found["items"][1]["state"] == "waiting"
    again = {"kind": "turn_start", "messages": [], "permissions": [{"call_id": "a", "granted": True}]}
    found = timeline(page, [*asked, again, started("a_again"), result("a_again"), END])
    assert [item["type"] for item in found["items"]] == ["user", "tool", "paused", "tool", "end"]


def test_the_newest_call_about_a_task_has_the_whole_list(page: Page) -> None:
    def task(call: str, name: str, given: dict[str, Any], output: str) -> list[dict[str, Any]]:
        return [started(call, name, input=given), result(call, output)]

    found = items_of(
        page,
        prompt("hi"),
        *task("a", "TaskCreate", {"subject": "Look"}, "Task #3 created successfully: Look"),
        *task("b", "TaskCreate", {"subject": "Write"}, "Task #4 created successfully: Write"),
        *task("c", "TaskUpdate", {"taskId": "3", "status": "completed"}, "Updated task #3 status"),
        *task("d", "TaskUpdate", {"taskId": "9", "status": "in_progress"}, "Updated task #9 status"),
        *task("e", "TaskUpdate", {"taskId": "4", "status": "deleted"}, "Updated task #4 deleted"),
        kind="tool",
    )
    assert [one["tasks"] for one in found[:-1]] == [[], [], [], []]
    assert [(task["content"], task["status"]) for task in found[-1]["tasks"]] == [
        ("Look", "completed"),
        ("Task 9", "in_progress"),
    ]

"""Histories in the format of claude: native messages, the session file, and the folder of that file."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.claude.content import native_content, native_messages
from drivers.claude.session_file import project_folder, session_file
from drivers.contract.messages import (
    AssistantMessage,
    Content,
    ImageBlock,
    Message,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ToolMessage,
    ToolUseBlock,
    UserMessage,
)

CALL = ToolUseBlock(tool_call_id="t1", name="get_weather", input={"location": "Tokyo"})
NATIVE_CALL = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"location": "Tokyo"}}


@pytest.mark.parametrize(
    ("content", "native"),
    [
        ("text", "text"),
        ("", ""),
        ((TextBlock(text="a"),), [{"type": "text", "text": "a"}]),
        ((CALL,), [NATIVE_CALL]),
        ((ThinkingBlock(thinking="hm"), TextBlock(text="a")), [{"type": "text", "text": "a"}]),
        ((ImageBlock(url="https://x/y.png"),), [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}]),
        (
            (ImageBlock(url="data:image/png;base64,AAEC"),),
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}],
        ),
        ((), []),
    ],
)
def test_content(content: Content, native: object) -> None:
    assert native_content(content) == native


HISTORY: tuple[Message, ...] = (
    SystemMessage(content="Be kind."),
    UserMessage(content="What is the weather?"),
    AssistantMessage(content=(ThinkingBlock(thinking="hm"), TextBlock(text="Asking."), CALL)),
    ToolMessage(tool_call_id="t1", content="18 C"),
    ToolMessage(tool_call_id="t2", content=(ImageBlock(url="https://x/y.png"),)),
    AssistantMessage(content="It is mild."),
    AssistantMessage(content=(ThinkingBlock(thinking="nothing else"),)),
    UserMessage(content=""),
    ToolMessage(tool_call_id="t3", content=""),
)
NATIVE: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather?"},
    {"role": "assistant", "content": [{"type": "text", "text": "Asking."}, NATIVE_CALL]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "18 C"},
            {
                "type": "tool_result",
                "tool_use_id": "t2",
                "content": [{"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}],
            },
        ],
    },
    {"role": "assistant", "content": "It is mild."},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3", "content": ""}]},
]


def test_messages() -> None:
    assert native_messages(HISTORY) == NATIVE
    assert native_messages(()) == []


def test_the_session_file_is_a_chain_of_minimal_lines() -> None:
    ids = [f"id-{n}" for n in range(len(HISTORY))]
    lines = session_file(HISTORY, ids, "2026-11-20T19:00:00.000Z").split(b"\n")
    assert lines.pop() == b""
    records = [json.loads(line) for line in lines]
    assert [set(record) for record in records] == [{"type", "message", "uuid", "parentUuid", "timestamp"}] * 5
    assert [record["uuid"] for record in records] == ids[:5]
    assert [record["parentUuid"] for record in records] == [None, *ids[:4]]
    assert {record["timestamp"] for record in records} == {"2026-11-20T19:00:00.000Z"}
    assert [record["type"] for record in records] == [message["role"] for message in NATIVE]
    # The content of an assistant message is always a list of blocks.
    expected = [*NATIVE[:3], {"role": "assistant", "content": [{"type": "text", "text": "It is mild."}]}, NATIVE[4]]
    for record, message in zip(records, expected, strict=True):
        own = {"id": record["uuid"], "model": "<synthetic>"} if record["type"] == "assistant" else {}
        assert record["message"] == {**message, **own}


LONG = "/tmp/real/" + "/".join(f"L\u00f6ng-{n}_" + "x" * 40 for n in range(6))


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/home/user/work/w", "-home-user-work-w"),
        ("/home/user/my.project_2/\u00e4 b", "-home-user-my-project-2---b"),
        ("/a/\U0001f600/b", "-a----b"),
        ("/", "-"),
        ("/" + "a" * 199, "-" + "a" * 199),
        # These names were created by claude.
        (LONG, ("-" + LONG[1:].translate(str.maketrans("/\u00f6_", "---")))[:200] + "-imv7vy"),
    ],
)
def test_the_session_folder_of_a_working_folder(path: str, folder: str) -> None:
    assert project_folder(path) == folder


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_session_folder_of_any_path_is_one_short_name(path: str) -> None:
    folder = project_folder("/" + path)
    assert len(folder) <= 208
    assert folder.isascii() and len(PurePosixPath(folder).parts) == 1
    assert set(folder.lower()) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")

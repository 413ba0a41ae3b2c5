"""The claude codec on unknown lines, which become stdout events."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from drivers.claude.codec import ClaudeCodec
from drivers.contract.events import Stdout


@given(st.binary() | st.text().map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_unknown_lines_are_stdout(line: bytes) -> None:
    line = line.replace(b"\n", b" ")
    codec = ClaudeCodec(once=True)
    shown = codec.receive(line)
    assert shown == ([Stdout(line=line.decode("utf-8", "replace").rstrip("\r"))] if line.strip() else [])


def test_new_types_and_malformed_known_types_are_stdout() -> None:
    for native in (
        {"type": "new_type", "text": "x"},
        {"type": "system", "subtype": "new_subtype"},
        {"type": "stream_event", "event": {"type": "new_event"}},
        {"type": "stream_event", "event": {"type": "content_block_delta", "delta": {"type": "new_delta"}}},
        {"type": "stream_event"},
        {"type": "assistant", "message": "text"},
        {"type": "user", "message": None},
        {"type": "system", "subtype": "init"},
        {"type": "control_response"},
        {"type": ["assistant"]},
    ):
        line = json.dumps(native)
        assert ClaudeCodec(once=True).receive(line.encode()) == [Stdout(line=line)]

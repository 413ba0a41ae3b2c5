"""Bytes to lines to JSON objects: chunk boundaries have no effect, and no line raises an error."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.contract.line_splitter import MAX_LINE, LineSplitter, LineTooLong, parse_object, text_line


@given(st.lists(st.binary(max_size=30), max_size=20).map(b"\n".join), st.lists(st.integers(0, 600), max_size=30))
def test_chunks_may_be_cut_anywhere(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    splitter = LineSplitter()
    lines = [line for start, end in pairwise(edges) for line in splitter.feed(data[start:end])]
    assert [*lines, splitter.rest()] == data.split(b"\n")
    assert splitter.rest() == b""


@given(st.binary(max_size=200))
def test_byte_by_byte(data: bytes) -> None:
    splitter = LineSplitter()
    lines = [line for byte in data for line in splitter.feed(bytes([byte]))]
    assert [*lines, splitter.rest()] == data.split(b"\n")


def test_a_line_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert LineSplitter(10).feed(b"0123456789\n") == [b"0123456789"]
    for chunks in ([b"0123456789A\n"], [b"0123456789A"], [b"01234", b"56789", b"A"], [b"a\n0123456789A\nb\n"]):
        splitter = LineSplitter(10)
        with pytest.raises(LineTooLong, match="10 bytes"):
            for chunk in chunks:
                splitter.feed(chunk)


def test_the_limit_is_for_each_line_alone() -> None:
    splitter = LineSplitter(10)
    for _ in range(100):
        assert splitter.feed(b"12345") == []
        assert splitter.feed(b"67890\n") == [b"1234567890"]


def test_the_usual_limit_is_64_mib() -> None:
    assert MAX_LINE == 64 * 1024 * 1024
    splitter = LineSplitter()
    chunk = b"x" * (1024 * 1024)
    for _ in range(64):
        assert splitter.feed(chunk) == []
    with pytest.raises(LineTooLong):
        splitter.feed(b"x")


def test_a_long_line_in_small_chunks_costs_no_more_than_its_length() -> None:
    splitter = LineSplitter()
    chunk = b"x" * 1024
    began = time.monotonic()
    for _ in range(32 * 1024):
        splitter.feed(chunk)
    assert splitter.feed(b"\n") == [chunk * 32 * 1024]
    # A buffer that grows by copying would move 500 GB here.
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'  {"a": "\xc3\xa9"}\r', {"a": "\u00e9"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
        (rb'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (rb'{"a": "\uD83D half"}', {"a": "\ufffd half"}),
        (rb'{"a": ["x\ude00y", {"\ud83d": "\ud83d\ude00"}]}', {"a": ["x\ufffdy", {"\ufffd": "\U0001f600"}]}),
        (rb'{"a": "\ud83d", "n": [1, true, null, 0.5]}', {"a": "\ufffd", "n": [1, True, None, 0.5]}),
    ],
)
def test_objects(line: bytes, expected: dict[str, object]) -> None:
    assert parse_object(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b"plain text",
        b"[1]",
        b'"text"',
        b"null",
        b"1",
        b'{"a": 1',
        b'{"a": 1} x',
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        rb'{"a": "\ud83d"',
        rb'["\ud83d"]',
        b"\x00",
        b"\xef\xbb\xbf{}",
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        rb'{"\ud83d":' * 5000 + b"1" + b"}" * 5000,
    ],
)
def test_anything_else_is_none(line: bytes) -> None:
    assert parse_object(line) is None


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())))
def test_text_that_is_invalid_in_utf_8_is_replaced(given_object: dict[str, str]) -> None:
    parsed = parse_object(json.dumps(given_object).encode())
    assert parsed is not None
    assert json.dumps(parsed, ensure_ascii=False).encode("utf-8")


@given(st.binary())
def test_no_line_raises(line: bytes) -> None:
    assert parse_object(line) is None or isinstance(parse_object(line), dict)
    text_line(line).encode("utf-8")


def test_a_raw_line_as_text() -> None:
    assert text_line(b"caf\xc3\xa9 \xff\r") == "caf\u00e9 \ufffd"

"""Setting a member of a JSON text with comments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cli.jsonc import JSONDecodeError, parse, with_member

COMMENTED = """// Zed settings
{
  /* "agent_servers": {"not": "this"} */
  "theme": "One // Dark", // the "theme"
  "agent_servers": {
    "Other": {"command": "a,]"},
  },
  "url": "https://example.com/*x*/",
}
"""


def test_member_is_added_beside_others_and_comments_stay() -> None:
    changed = with_member(COMMENTED, ["agent_servers", "New"], {"command": "/bin/new", "args": ["acp"]})
    assert parse(changed)["agent_servers"] == {"New": {"command": "/bin/new", "args": ["acp"]}, "Other": {"command": "a,]"}}
    assert [line for line in COMMENTED.splitlines() if line not in changed.splitlines()] == []


def test_member_that_is_there_is_replaced_in_its_place() -> None:
    changed = with_member(COMMENTED, ["agent_servers", "Other"], {"command": "b"})
    assert changed == COMMENTED.replace('{"command": "a,]"}', '{\n      "command": "b"\n    }')


@pytest.mark.parametrize(
    "text", ["", "  \n", "// only a comment\n", "{}", "{ }", "{\n}\n", "{ // why\n}\n", '{"a": 1}', '{"a": {},}']
)
def test_objects_that_are_missing_are_created(text: str) -> None:
    before = parse(text) or {}
    changed = with_member(text, ["agent_servers", "x"], {})
    assert parse(changed) == {**before, "agent_servers": {"x": {}}}
    assert all(comment in changed for comment in ("// only a comment", "// why") if comment in text)


@pytest.mark.parametrize(("text", "named"), [("[]", "the text"), ("3", "the text"), ('{"agent_servers": []}', "agent_servers")])
def test_a_value_that_is_not_an_object_is_named(text: str, named: str) -> None:
    with pytest.raises(TypeError, match=f"^{named} is not an object$"):
        with_member(text, ["agent_servers", "x"], 1)


@pytest.mark.parametrize("text", ["{", '{"a" 1}', "{} {}", "{'a': 1}", '{"a": }'])
def test_a_text_that_is_not_json_is_rejected(text: str) -> None:
    with pytest.raises(JSONDecodeError):
        with_member(text, ["a"], 1)


KEYS = st.text('ab/*",', max_size=3)
VALUES = st.sampled_from([None, 1.5, "// no comment", ', ]} "', [], [1, {"a": "/*"}], {}, {"b": [{}], "*/": ","}])


@settings(max_examples=60)
@given(st.dictionaries(KEYS, VALUES, max_size=4), KEYS, VALUES, st.sampled_from([None, 2]))
def test_all_other_members_stay_as_they_are(document: dict[str, Any], key: str, value: Any, indent: int | None) -> None:
    changed = with_member(json.dumps(document, indent=indent) + " // end", [key], value)
    assert parse(changed) == {**document, key: value}

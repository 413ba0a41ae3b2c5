"""The inputs of gemini's calls, as far as the CLI displays them."""

from __future__ import annotations

import pytest
from acp.schema import FileEditToolCallContent

from drivers.acp import ToolCallState
from drivers.gemini.acp_profile import agent_profile


@pytest.mark.parametrize(
    ("old", "diff"), [("one\n", {"diff": "--- /w/a\n+++ /w/a\n@@ -1 +1 @@\n-one\n+two"}), ("", {}), (None, {})]
)  # fmt: skip
def test_input_of_write_file_has_the_change_of_a_file_that_exists(old: str | None, diff: dict[str, str]) -> None:
    edit = FileEditToolCallContent(type="diff", path="/w/a", old_text=old, new_text="two\n")
    call = ToolCallState("write_file__1", kind="edit", title="Writing to a", content=[edit])
    assert agent_profile(verbatim=True).tool_input(call) == {"file_path": "/w/a", "content": "two\n", **diff}

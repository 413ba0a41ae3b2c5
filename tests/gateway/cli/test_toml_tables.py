"""Tables of agents in a configuration file: only the table changes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.toml_tables import NotEditable, with_agent, without_agent

TEXT = """\
# The gateway.
[server]
port = 7701   # not the usual one

# Reads changes.
[agents.reviewer]
driver = "claude"   # the only one
# Its folder:
cwd = "~/projects"
prompt = \"\"\"
not a table:
 agents.helper
\"\"\"

[[agents.reviewer.policy]]
tool = "Bash"
decide = "deny"

# For tests.
[agents.demo]
driver = "echo"

# [agents.other]
# driver = "echo"
"""


def test_a_table_is_added_at_the_end() -> None:
    changed = with_agent(TEXT, "my.agent", {"driver": "opencode", "program": 'C:\\a "b"'}, "OpenCode")
    assert changed.startswith(TEXT)
    assert changed.removeprefix(TEXT) == '\n[agents."my.agent"]\n# OpenCode\ndriver = "opencode"\nprogram = "C:\\\\a \\"b\\""\n'
    assert tomllib.loads(changed)["agents"]["my.agent"]["program"] == 'C:\\a "b"'


def test_a_new_file_has_only_the_table() -> None:
    assert with_agent("", "kimi", {"driver": "kimi"}, "Kimi") == '[agents.kimi]\n# Kimi\ndriver = "kimi"\n'
    assert without_agent('[agents.kimi]\n# Kimi\ndriver = "kimi"\n', "kimi") == ""


def test_a_table_is_removed_with_those_in_it() -> None:
    removed = without_agent(TEXT, "reviewer")
    assert removed == TEXT[: TEXT.index("[agents.reviewer]")] + TEXT[TEXT.index("# For tests.") :]


def test_a_comment_at_the_end_of_the_file_stays() -> None:
    removed = without_agent(TEXT, "demo")
    assert removed == TEXT[: TEXT.index("[agents.demo]")] + TEXT[TEXT.index("# [agents.other]") :]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1), st.text(st.characters(codec="utf-8")))
def test_what_is_added_can_be_removed(name: str, value: str) -> None:
    added = with_agent(TEXT, name, {"driver": value}, "One")
    assert tomllib.loads(added)["agents"][name] == {"driver": value}
    assert without_agent(added, name) == TEXT if name not in ("reviewer", "demo") else True


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('agents.demo.driver = "echo"\nagents.demo.cwd = "~"\n# One.\nagents.one.driver = "echo"\n',
         '# One.\nagents.one.driver = "echo"\n'),
        ('[agents]\ndemo = { driver = "echo" }\ndemon = { driver = "echo" }\n', '[agents]\ndemon = { driver = "echo" }\n'),
        ('note = """\n[agents.demo]\n"""\n[agents]\ndemo.driver = "echo"\n', 'note = """\n[agents.demo]\n"""\n[agents]\n'),
        ('[agents.demo]\ndriver = "echo"\nargs = [\n  ["a"],\n# b\n]\n# [agents.x]\n\n[server]\n', "# [agents.x]\n\n[server]\n"),
        ('[server]\n[agents.demo]\ndriver = "echo"\n# its own\n\n# [agents.x]', "[server]\n# [agents.x]"),
        ('[agents.a]\n[server]\n[agents.demo]\n[agents.demo.env]\nA = "b"\n# C\n[agents.c]\n',
         "[agents.a]\n[server]\n# C\n[agents.c]\n"),
        ('[agents.demo]\nprompt = """\nOne\n\n# Two"""\n\n# The server\n[server]\n', "# The server\n[server]\n"),
        ('[agents.demo]\nprompt = """\nOne\n\n# Two\n\n# Three"""\n', ""),
    ],
)  # fmt: skip
def test_a_table_in_any_form_is_removed_and_the_comment_before_the_next_one_stays(text: str, rest: str) -> None:
    assert without_agent(text, "demo") == rest


@pytest.mark.parametrize(
    "text",
    [
        'agents = { demo = { driver = "echo" } }\n',
        'agents.demo.driver = "echo"\nport = 1\nagents.demo.cwd = "~"\n',
        '[agents.demo]\ndriver = "echo"\n\n# The server\n[server]\n\n[agents.demo.env]\nA = "b"\n',
    ],
)
def test_a_table_without_lines_of_its_own_is_left_alone(text: str) -> None:
    with pytest.raises(NotEditable, match="lines of its own"):
        without_agent(text, "demo")


def test_nothing_is_added_to_an_inline_table() -> None:
    with pytest.raises(NotEditable):
        with_agent("agents = {}\n", "demo", {"driver": "echo"}, "One")


def test_lines_of_windows_stay() -> None:
    text = TEXT.replace("\n", "\r\n")
    assert without_agent(text, "reviewer") == without_agent(TEXT, "reviewer").replace("\n", "\r\n")


def test_a_text_that_looks_like_a_table_stays() -> None:
    text = 'note = """\n[agents.demo]\n"""\n\n[agents.demo]\ndriver = "echo"\n'
    assert without_agent(text, "demo") == 'note = """\n[agents.demo]\n"""\n'


def test_what_is_not_toml_is_left_alone() -> None:
    with pytest.raises(NotEditable):
        without_agent("[agents.demo\n", "demo")

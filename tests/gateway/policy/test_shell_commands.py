"""Parsing of shell command lines, compared with what bash really runs."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.policy.rules import Policy, Rule
from gateway.policy.shell_commands import parse

ALLOW = Policy([Rule(tool="shell", when={"command": "echo ok*"}, decide="allow")])
DENY = Policy([Rule(tool="shell", when={"command": "bad*"}, decide="deny")])

PIECES = (
    "echo ok", "echo ok ", "bad", " bad ", "bad x", "a", " ", "  ", ";", "&", "&&", "|", "||", "|&", "\n", "\\\n", "\\", "'", '"',
    "`", "$(", ")", "(", "{", "}", "${x:-", "$x", "$((", "))", "<(", ">(", "<", ">", ">>", "2>&1", ">/dev/null", "&>", "<<E\n",
    "E\n",
    "<<<", "#", "!", "*", "?", "[", "]", "=", "x=1 ", "if ", "then ", "fi", "for i in a; do ", "done", "case a in a)", ";;",
    "esac",     "eval ", "command ", "$'", "\\x62", "\t", "\r", "~", "\u2028", "é", "[[ ", " ]]", "coproc ",
    "time ", "f() ", "bash -c ",
)  # fmt: skip
LINES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=9).map("".join)

TRACE = r"""
bad() { :; }
set -T
trap 'printf "%s\0" "$BASH_COMMAND" >&9' DEBUG
eval "$LINE"
"""


def commands_run_by_bash(line: str) -> list[str]:
    """Return the commands that bash starts for a line, in an empty folder and with an empty PATH."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        script = f"exec 9>{log}\n{TRACE}"
        argv = ["/bin/bash", "--norc", "--noprofile", "-c", script]
        env = {"LINE": line, "PATH": "/nowhere", "LC_ALL": "C.UTF-8"}
        work = Path(folder) / "work"
        work.mkdir()
        subprocess.run(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        found = log.read_bytes().decode(errors="replace").split("\0")[:-1]
    assert found[0] == 'eval "$LINE"'
    return [command for command in found[1:] if not command.startswith("2>&1")]


def files_made_by(line: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        env = {"PATH": "/nowhere"}
        argv = ["/bin/bash", "--norc", "-c", line]
        subprocess.run(argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        return [path.name for path in Path(folder).iterdir()]


MANY_EXAMPLES = settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)


@MANY_EXAMPLES
@given(LINES)
@example("echo ok; bad")
@example("echo ok\nbad")
@example("echo ok && bad")
@example("echo ok $(bad)")
@example('echo ok "`bad`"')
@example("echo ok <(bad)")
@example("echo ok > a")
@example("echo ok & bad")
@example("x=$(bad) echo ok")
@example("echo ok ${x:-$(bad)}")
@example("echo ok\n\\\nbad x")
@example("echo ok;2>&1")
@example("echo ok\n\\bad x")
def test_allowed_lines_run_only_the_allowed_command(line: str) -> None:
    """A line that a pattern for one command allows runs no other command and writes no file in bash."""
    for text in (line, "echo ok" + line):
        if ALLOW.evaluate("shell", {"command": text}).verdict != "allow":
            continue
        ran = commands_run_by_bash(text)
        assert all(command.replace("\\", "").startswith("echo ok") for command in ran), (text, ran)
        assert files_made_by(text) == [], text


@MANY_EXAMPLES
@given(LINES)
@example("echo $(bad)")
@example("bash -c 'bad x'")
@example("eval 'ba''d'")
@example("$'\\x62ad' x")
@example("x=bad; $x")
@example("if bad; then echo; fi")
@example('echo "`bad`"')
@example("coproc bad")
@example("command bad")
@example("f() { bad; }; f")
@example("echo bad | bash")
@example("echo ok\n\\\nbad x")
@example("echo \\\\\nbad x")
@example("! ! bad x")
@example("\r#;bad x")
@example("echo ok\n\\bad x")
@example("2>&12>&1 #\nbad x")
def test_lines_that_are_not_denied_do_not_run_the_denied_command(line: str) -> None:
    """If bash runs the denied command, the verdict for the line was `deny` or `ask`."""
    for text in (line, line + "bad x"):
        if DENY.evaluate("shell", {"command": text}).verdict is None:
            ran = commands_run_by_bash(text)
            assert not any(command == "bad" or command.startswith("bad ") for command in ran), (text, ran)


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("git status", ["git status"]),
        ("git  'log  x' \"y\" z\\ w 2>&1 | head -3 && ls >/dev/null", ["git log  x y z w", "head -3", "ls"]),
        ("g''it status", ["git status"]),
    ],
)
def test_commands_of_plain_lines(line: str, commands: list[str]) -> None:
    found = parse(line)
    assert [command.text for command in found.commands] == commands
    assert found.plain and found.known


@pytest.mark.parametrize(
    "line",
    [
        "git $X", "git $(ls)", "git `ls`", "git > f", "git \\\n a", "git < f", "git <<< x", "x=1 git",
        "(git)", "{ git; }", "git *(e:ls:)",
        "git =(ls)",
        "'git status'", "git 'x", "git # x", "git\r", "git\u00a0x", "! git", "bash -c git", "eval git", "git " + "x" * 200_000,
    ],
)  # fmt: skip
def test_lines_that_are_not_plain_are_recognized(line: str) -> None:
    assert not parse(line).plain


@pytest.mark.parametrize(
    "line",
    [
        "rm x", "/bin/rm x", "'rm' x", "r\\m x", "a; rm x", "a && rm x", "a | rm x", "a\nrm x", "a & rm x",
        "echo $(rm x)", 'echo "`rm x`"',
        "(rm x)", "if a; then rm x; fi", "sudo -u me rm x", "env A=1 rm x", "A=1 rm x", "timeout 5 rm x", "ls | xargs -n1 rm x",
        "find . -exec rm x {} +", "bash -c 'rm x'", "bash -lc \"a; rm x\"", "sudo sh -c 'rm x'", "eval rm x",
        "a 'b; (rm x", "nohup nice rm x",
        "cat <<E\n$(rm x)\nE", "sh -c \"sh -c 'rm x'\"", "rm x *(e:ls:)", "rm <a x", "sudo <a rm x", "<a rm x", "rm <<<a x",
        "sudo <<E rm x\nE",
    ],
)  # fmt: skip
def test_nested_command_is_found_and_denied(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict == "deny"


UNDETERMINED = ("$X -rf /", "`a` x", "$'\\x72m' x", "/bin/r? x", "echo rm x | sh", "bash <<< x", 'bash -c "$X"', "eval $X")


@pytest.mark.parametrize("line", UNDETERMINED)
def test_line_with_an_undetermined_command_gets_the_verdict_ask(line: str) -> None:
    assert DENY.evaluate("shell", {"command": line}).verdict == "ask"
    assert DENY.evaluate("shell", {"command": "echo rm"}).verdict is None

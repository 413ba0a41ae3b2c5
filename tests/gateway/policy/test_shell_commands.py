"""Parsing of shell command lines, compared with what bash really runs."""

from __future__ import annotations

import random
import shlex
import subprocess
import tempfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.policy.rules import LONG, Policy, Rule
from gateway.policy.shell_commands import MAX_LENGTH, parse
from tests.gateway.policy.lines_run_by_bash import lines_that_run_bad, missed_lines, random_line

ALLOW = Policy([Rule(tool="shell", when={"command": "echo ok*"}, decide="allow")])
DENY = Policy([Rule(tool="shell", when={"command": "bad*"}, decide="deny")])

PIECES = (
    "echo ok", "echo ok ", "bad", " bad ", "bad x", "a", " ", "  ", ";", "&", "&&", "|", "||", "|&", "\n", "\\\n", "\\", "'",
    '"', "`", "$(", ")", "(", "{", "}", "${x:-", "$x", "$((", "))", "<(", ">(", "<", ">", ">>", "2>&1", ">/dev/null", "&>",
    "<<E\n", "E\n", "<<<", "#", "!", "*", "?", "[", "]", "=", "x=1 ", "if ", "then ", "fi", "for i in a; do ", "done",
    "case a in a)", ";;", "esac", "eval ", "command ", "$'", "\\x62", "\t", "\r", "~", "\u2028", "é", "[[ ", " ]]",
    "coproc ", "time ", "f() ", "bash -c ",
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


def _is_echo_ok(command: str) -> bool:
    """Whether bash runs `echo` with an argument that starts with `ok`; the command is as in the line, with its quotes."""
    if command.replace("\\", "").startswith("echo ok"):
        return True
    words = shlex.split(command)
    return words[0] == "echo" and words[1].startswith("ok")


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
@example("''echo ok")
@example("echo ok\n\\bad x")
def test_allowed_lines_run_only_the_allowed_command(line: str) -> None:
    """A line that a pattern for one command allows runs no other command and writes no file in bash."""
    for text in (line, "echo ok" + line):
        if ALLOW.evaluate("shell", {"command": text}).verdict != "allow":
            continue
        ran = commands_run_by_bash(text)
        assert all(_is_echo_ok(command) for command in ran), (text, ran)
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
        "'git status'", "git 'x", "git # x", "git\r", "git\u00a0x", "! git", "bash -c git", "eval git",
        "git " + "x" * 200_000,
    ],
)  # fmt: skip
def test_lines_that_are_not_plain_are_recognized(line: str) -> None:
    assert not parse(line).plain


@pytest.mark.parametrize(
    "line",
    [
        "rm x", "/bin/rm x", "'rm' x", "r\\m x", "a; rm x", "a && rm x", "a | rm x", "a\nrm x", "a & rm x", "echo $(rm x)",
        'echo "`rm x`"', "(rm x)", "if a; then rm x; fi", "sudo -u me rm x", "env A=1 rm x", "A=1 rm x", "timeout 5 rm x",
        "ls | xargs -n1 rm x", "find . -exec rm x {} +", "bash -c 'rm x'", "bash -lc \"a; rm x\"", "sudo sh -c 'rm x'",
        "eval rm x", "a 'b; (rm x", "nohup nice rm x", "cat <<E\n$(rm x)\nE", "sh -c \"sh -c 'rm x'\"", "rm x *(e:ls:)",
        "rm <a x", "sudo <a rm x", "<a rm x", "rm <<<a x", "sudo <<E rm x\nE", "[[ a <$(rm x) ]]",
    ],
)  # fmt: skip
def test_nested_command_is_found_and_denied(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict == "deny"


UNDETERMINED = (
    "$X -rf /", "`a` x", "$'\\x72m' x", "/bin/r? x", "echo rm x | sh", "bash <<< x", 'bash -c "$X"', "eval $X",
    'echo "`echo \\"x\\"`"',
)  # fmt: skip


@pytest.mark.parametrize("line", UNDETERMINED)
def test_line_with_an_undetermined_command_gets_the_verdict_ask(line: str) -> None:
    assert DENY.evaluate("shell", {"command": line}).verdict == "ask"
    assert DENY.evaluate("shell", {"command": "echo rm"}).verdict is None


@pytest.mark.parametrize(
    "line",
    [
        '$"rm" x', "echo ${x:-`rm x`}", 'echo "${x:-`rm x`}"', ". <(rm x)", "bash <(rm x)", "rbash -c 'rm x'",
        "env -S'rm x'", "env -iS 'rm x'", "env --split-string='rm x'", "trap 'rm x' EXIT", "trap -- 'rm x' 0",
        "tcsh -c 'rm x'", "csh -c 'rm x'", "fish -c 'rm x'", "sudo -s <<< 'rm x'", "sudo -s rm x", "mapfile -C 'rm x' -c 1 a",
        "readarray -C'rm x' a", "bash <<< 'rm x'", "bash <<'E'\nrm x\nE", "compgen -W '$(rm x)'", "alias ll='rm x'",
        "compgen -W '#$(rm x)'", "coproc a { rm x; }", "time -p rm x", "bash -o posix rm x",
        "case $(rm x) in a) ;; esac", "/BIN/Bash -c 'rm x'", "function f { rm x; }", "a=($(rm x))", "a[$(rm x)]=1",
        ": $(( `rm x` ))", "cat <(rm x)", "for ((i=0; i<1; i++)); do rm x; done", "case a in (b|a) rm x ;& esac",
        "time -p jobs -x . /dev/stdin <<< 'rm x'", "time . /dev/stdin <<< 'rm x'",
        "PROMPT_COMMAND='rm x' bash -i", "sudo bash ./rm x", "eval -- rm x", "jobs -x rm x", "e\\\nval 'rm x'",
    ],
)  # fmt: skip
def test_command_that_a_builtin_or_another_program_runs_is_denied(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict == "deny"


@pytest.mark.parametrize(
    "line",
    [
        # Programs that run others, as words and as lines. No list names them.
        "git submodule foreach 'rm x'", "git rebase -x 'rm x' main", "git rebase --exec='cd a && rm x'", "git bisect run rm x",
        "npx rm x", "uv run rm x", "docker exec c rm x", "gxargs rm", "gtimeout 5 rm x", "ls | entr rm x", "caffeinate -i rm x",
        "su -c 'rm x'", "su me -lc 'rm x'", "su --command='rm x'", "prlimit --nofile=9 rm x", "bwrap --ro-bind / / rm x",
        "capsh -- -c 'rm x'", "tini -- rm x", "gdb --args rm x", "numactl -N 0 rm x", "systemd-inhibit rm x",
        "setarch x86_64 rm x", "x86_64 rm x", "/lib/ld-linux.so.2 /bin/rm x", "busybox rm x", "busybox sh -c 'rm x'",
        "setpriv --reuid 1 rm x", "script -c 'rm x'", "script -qc 'rm x' /dev/null", "flock f -c 'rm x'", "flock f rm x",
        "watch 'rm x'", "ssh host 'cd a && rm x'", "ssh host <<E\nrm x\nE", "parallel 'rm x' ::: a",
        "docker exec c sh -c 'cd a; rm x'",
        "made-up -v --at=1 rm x", "made-up /bin/rm x", "made-up 'a; rm x'", "made-up --do='rm x'", "made-up -crm", "made-up RM x",
        "made-up -c 'other rm x'", "env made-up 'a; rm x'", "made-up r''m x", "made-up $'\\x72m' x",
        "made-up r${none}m x", "made-up {rm,x}", "made-up sh -c \"r''m x\"", "made-up sh <<< 'rm x'",
        # The arguments may be meant otherwise: that is a question, too.
        "git commit -m 'rm old files'", "git rm x", "docker rm x",
    ],
)  # fmt: skip
def test_program_that_may_run_a_denied_command_is_asked_about(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny")])
    found = policy.evaluate("shell", {"command": line})
    assert (found.verdict, found.rule) == ("ask", 0)


@pytest.mark.parametrize("line", ["git rm x", "git commit -m 'a; rm x'", "git rebase -x 'rm x'"])
def test_program_that_an_earlier_rule_allows_is_not_asked_about(line: str) -> None:
    rules = [("git *", "allow"), ("rm *", "deny")]
    policy = Policy([Rule(tool="shell", when={"command": pattern}, decide=decide) for pattern, decide in rules])
    assert policy.evaluate("shell", {"command": line}).verdict == "allow"
    explained = policy.explain("shell", {"command": f"made-up {line}"})
    assert [one.evaluation.verdict for one in explained.commands] == ["ask"]


@pytest.mark.parametrize(
    ("pattern", "line", "asked"),
    [
        ("rm", "made-up rm", True), ("rm", "made-up rm x", False), ("rm -rf *", "made-up -- rm -rf /", True),
        ("rm -rf *", "made-up rm -r x rm -rf y", True), ("rm * /", "made-up rm a rm b /", True), ("r? *", "made-up rm x", True),
        ("*rm -rf /*", "made-up rm -rf /a", False), ("rm *", "made-up arm x", False), ("rm *", "made-up x.rm y", False),
        ("git push *", "made-up git push", True), ("git push *", "made-up git pushed", False),
    ],
)  # fmt: skip
def test_pattern_is_compared_from_each_argument_on(pattern: str, line: str, asked: bool) -> None:
    """A pattern with `*` in front matches the whole command already."""
    policy = Policy([Rule(tool="shell", when={"command": pattern}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict == ("ask" if asked else "deny" if pattern[0] == "*" else None)


@pytest.mark.parametrize(
    "line",
    [
        "bash <(printf bad)", ". <(printf bad)", "source <(printf bad)", "source /dev/stdin", "sudo -s", "sudo -i", "su",
        "env $X", "sudo $X", "timeout 5 $X",
        "made-up sh -c \"$X\"", "made-up bash <(x)", "made-up -c 'x=a; $x'",
        "find . -exec $X \\;", "find . $X", "find . -exec {} \\;",
        "xargs env", "xargs -I% sh -c %", "xargs -I% %", "xargs -I {} {}", "xargs bash -c", "x='a[$(bad)]'; : $((x))",
        "x='$(bad)'; : ${x@P}", "let 'a[$(bad)]=1'", "unset 'a[$(bad)]'", "PS4='$(bad)'; set -x", "hash -p /bin/x y",
        "BASH_ENV=f bash -c x", "export BASH_ENV=f; bash -c x", "for BASH_ENV in f; do bash -c x; done", "read PS4 <<< x",
        "ENV=f sh -i", "printf -v x '\\x24(bad)'", "echo ${x@P}", "trap $X EXIT", "=x y", "${ bad; }", "echo $[x]",
        'echo "${x:-\'a}"', "cat <<E", "echo (", "a; esac", "{ a; }; )",
    ],
)  # fmt: skip
def test_line_that_is_not_understood_gets_the_verdict_ask(line: str) -> None:
    assert (
        Policy([Rule(tool="shell", when={"command": "other *"}, decide="deny")]).evaluate("shell", {"command": line}).verdict
        == "ask"
    )


@pytest.mark.parametrize(
    "line",
    [
        "cd /tmp && ls -la | grep -v 'a b' > out.txt 2>&1", 'for f in *.py; do echo "$f"; wc -l "$f"; done',
        "if [ -f a ]; then cat a; else echo no >&2; exit 1; fi",
        'if [[ "$x" =~ ^(a|b)+$ ]]; then echo "${x%.*} ${y:-def} ${#z}"; fi',
        "git commit -m \"$(cat <<'EOF'\nFix `foo` and $(bar): don't\n\nrm x\nEOF\n)\"",
        "cat > f.py <<'EOF'\nprint('$(x)', \"`\")\nEOF", "awk '{print $1}' f | sort -u", "sed -i 's/a$/b/; s/`//' f",
        "find . -name '*.py' -not -path './x/*' | xargs grep -n 'foo'", "find . -type f -exec grep -l foo {} +",
        "ls | xargs -I{} cp {} dst/", "x=$(git rev-parse HEAD); echo \"$x\"", "i=$((i+1)); echo $i",
        "while read -r line; do echo \"$line\"; done < f", "diff <(sort a) <(sort b)", "source ~/.bashrc",
        "bash script.sh a b", "bash -lc 'cd x && make'", "arr=(a b 'c d'); echo \"${arr[@]}\"",
        "case \"$1\" in start|stop) echo x;; *) echo y;; esac", "cat <<EOF\nHello $USER it's $(date)\nEOF",
        "git commit -m \"don't rm old files\"", "git add $FILE *.py", "made-up $X",
        "docker run --rm -v $PWD:/a img sh -c 'cd /a && make test'",
        "curl -sS -H 'Authorization: Bearer $TOKEN' -d '{\"a\": [1, 2]}' http://x | jq '.a[] | select(. > 1)'",
        "awk '$3 > 5 { print $1; x = \"rm y\" }' f", "perl -pe 's/\\$x/y/; chomp' f", "sed -n '$p' f",
        "psql -c 'select count(*) from t'",
        "made-up -c 'print(\"it is\")'", "gcc -c a.c -o a.o", "tar -czf a.tgz dir", "pytest -k 'not rm and a'",
        "git log --format='%h %s (%an)'",
        "grep -rn 'rm -rf' src", "echo rm x", "cp a{,.bak}", "echo 'a; rm x'",
        "python3 -c 'import re; print(re)'", "sudo -u me git status", "timeout 60 npm test", "env FOO=1 make",
        "trap 'echo \"$x\"' EXIT", "my-func() { echo a; }", "sudo sed -i s/a/b/ f", "sudo -u me grep -i x f", "ENV=prod make -i",
    ],
)  # fmt: skip
def test_ordinary_line_is_understood(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "rm *"}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict is None


LARGE = (
    "eval env " * 25 + "x", "eval " * 500 + "x", "env" + " a" * 12_000, "echo" + " sh" * 3000, "curl |" * 3000,
    "a|" * 7_500, "a=(" * 7_500, "a)" * 10_000,
    "<<E\n" * 5_000, "$(" * 10_000, "`" * 22_500, '"$(' * 7_500, "$((" * 7_500, "${a:-" * 5_000, "((" * 12_250,
    "case a in " * 2250, "<(" * 10_000,
    "env -S 'a' " * 2000, "trap 'a' b;" * 2000, "bash -c '" * 2250, "eval eval a;" * 2000, "find -exec " * 2000,
    "xargs -I% " * 2250, "\\\n" * 12_250,
    "[[ " * 7_500, "$((" * 39 + "$(" * 39, "x() " * 5_000, "a;" * 12_250, "x" * (MAX_LENGTH + 1), "sudo " * 4_750 + "x",
    "a " * 12_500, "trap 'eval `eval x`' a;" * 4000,
    "ENV=x;" * 4 + "'" + "sh " * 24_000 + "'", "ENV=x sh -i;" * 8000, "$((" * 12 + "\n#" + "a" * 90_000 + "\n" + ") )" * 12,
    "x 'a; b' " * 4000, "x " + "'a; b' " * 4000, "x " + "rm " * 4900, "x -c '" + "x -c a; " * 8000 + "'",
    "x {" + "rm," * 20_000 + "}",
)  # fmt: skip
"""Lines whose analysis takes seconds, gigabytes or too many frames if its work is not limited."""


@pytest.mark.parametrize("line", LARGE, ids=lambda line: line[:12].replace("\n", " "))
def test_work_on_a_line_is_limited(line: str) -> None:
    before = time.thread_time()
    found = parse.__wrapped__(line)
    assert time.thread_time() - before < 1
    assert sum(len(form) for command in found.commands for form in command.forms) < 1_000_000


@pytest.mark.parametrize(
    "line", ["x " + "rm y " * 2400, "x " + "rm' y' " * 4000, "x " + "/rm" * 30_000, "x 'rm a; rm b' " * 2000]
)
def test_many_arguments_are_compared_in_linear_time(line: str) -> None:
    rules = [Rule(tool="shell", when={"command": f"rm {n}*z*"}, decide="deny") for n in ("", "y*y*", "?")]
    before = time.thread_time()
    assert Policy(rules).evaluate("shell", {"command": line}).verdict in (None, "ask")
    assert time.thread_time() - before < 1


def test_short_lines_are_analysed_quickly() -> None:
    """They are analysed in the event loop."""
    for line in LARGE:
        text = line[:LONG]
        before = time.thread_time()
        DENY.evaluate("shell", {"command": text})
        assert time.thread_time() - before < 0.1, text


@pytest.mark.parametrize(
    "line", ["eval env " * 25 + "x", "eval " * 500 + "x", "env" + " a" * 12_000, "$(" * 40_000, "x" * (MAX_LENGTH + 1)]
)
def test_line_above_a_limit_gets_the_verdict_ask(line: str) -> None:
    assert DENY.evaluate("shell", {"command": line}).verdict == "ask"


def test_memory_of_an_analysis_is_limited() -> None:
    tracemalloc.start()
    try:
        parse.__wrapped__("env" + " a" * 4_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_random_lines_that_bash_runs_are_not_missed() -> None:
    """A longer run of the same is the campaign `rules` of `make faults`."""
    source = random.Random(1)
    lines = [random_line(source) for _ in range(300)]
    assert missed_lines(lines) == []


def test_random_lines_run_the_program() -> None:
    """The comparison with bash finds what it looks for."""
    lines = ["bad x", "echo bad", "bash -c 'bad x'", "env -S'bad x'", "'"]
    assert lines_that_run_bad(lines) == ["bad x", "bash -c 'bad x'", "env -S'bad x'"]


@pytest.mark.parametrize(
    "line", ["env 'BASH_FUNC_git%%=() { bad; }' bash -c git", "BASH_ALIASES[x]=bad; x", "BASH_CMDS[x]=/bin/bad; x"]
)
def test_line_that_defines_commands_by_a_variable_gets_the_verdict_ask(line: str) -> None:
    policy = Policy([Rule(tool="shell", when={"command": "other *"}, decide="deny")])
    assert policy.evaluate("shell", {"command": line}).verdict == "ask"

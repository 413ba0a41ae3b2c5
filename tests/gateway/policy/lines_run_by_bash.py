"""Random shell lines that run the program `bad` in one way or another, and what bash does with them."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.policy.rules import Policy, Rule

WRAPPINGS = (
    "{}", "{}", "{}", "{{ {}; }}", "({})", "echo $({})", 'echo "$({})"', "echo `{}`", "echo ${{x:-$({})}}",
    "echo ${{x:-`{}`}}", 'echo "${{x:-$({})}}"', "if {}; then :; fi", "if :; then {}; fi", "while {}; do break; done",
    "for i in a; do {}; done", "for i in $({}); do :; done", "case a in a) {};; esac", "case $({}) in a) ;; esac",
    "case a in (b|a) {} ;& c) ;; esac", "f() {{ {}; }}; f", "function f {{ {}; }}; f", "f() ({}); f", ": && {}", "! {}",
    "! ! {}", "time {}", "time -p {}", "{} &", "{} | cat", ": | {}", ": |& {}", "x=1 {}", "x=$({})", "a=($({}))",
    "a[$({})]=1", ": $(( $({}) ))", "(( $({}) ))", "[[ -n $({}) ]]", "[[ a =~ $({}) ]]", ": <({})", ": > >({})",
    "cat <<E\n$({})\nE", "cat <<'E'\nx\nE\n{}", "cat <<-E\n\t$({})\n\tE", "<<E {}\nE", "# comment\n{}", "echo 'a\nb'; {}",
    "2>&1 {}", ">/dev/null {}", "</dev/null {}", "echo \\\\\n{}", "echo \\\n; {}", "command {}", "jobs -x {}",
    "builtin eval {}", "exec {}", "env {}", "env A=1 {}", "env -u A {}", "nice {}", "nohup {}", "timeout 5 {}",
    "setsid -w {}", "echo | xargs {}", "echo y | xargs -I% {}", "find . -maxdepth 0 -exec {} \\;", "stdbuf -o0 {}",
    "busybox {}", "setpriv {}", "coproc {{ {}; }}; wait", "coproc {}; wait", "coproc X {{ {}; }}; wait", "flock f {}",
    "[[ x ]] && {}", "select i in a; do {}; done <<< 1", "for ((i=0; i<1; i++)); do {}; done", "$({})", "echo $[$({})]",
    "echo ${{x:=$({})}}", "echo ${{y[$({})]}}", "until ! {}; do break; done", "if [[ a == (a) ]]; then {}; fi",
    "{} # comment", "\t{}", "{}\\\n", "echo a#b; {}", "echo $'a\\'b'; {}", 'echo "a\\"b"; {}', "echo ${{x#'}}'}}; {}",
    "echo ${{#}}; {}", "echo $#; {}", "echo $((1<<2)); {}", "((1<<2)); {}", "x=a#b; {}", "echo ${{x/a/b}}; {}",
    "echo <<<a; {}", "cat <<E; {}\nx\nE", "cat <<E && {}\n)\nE", "cat <<\\E\n`\nE\n{}", "echo $(case a in a) {};; esac)",
    "echo $( # )\n{})", "echo $((  $({}) + 1 ))", "$(({}); :)", "(({}); :)", "function f() ({}); f", "f () {{\n{}\n}}\nf",
    "if :\nthen\n{}\nfi", "a() {{ :; }}; {}", "f() {{ \"$@\"; }}; f {}", "set -- {}; \"$@\"", "eval {}", "PS4='+'; {}",
    "declare x=$({})", "export x=`{}`", "echo {{a,b}}; {}",
)  # fmt: skip
"""`{}` is the place of a command that is not quoted."""
QUOTING = (
    "eval {}", "eval -- {}", "export BASH_ENV=<(printf %s {}); bash -c :",
    "read BASH_ENV <<< b/bad; export BASH_ENV; bash -c : {}", "bash -c {}", "sh -c {}", "rbash -c {}", "bash -lc {}",
    "bash -o posix -c {}", "bash <<< {}", "sh -s <<< {}", "bash -c {} a b", "trap {} EXIT", "trap -- {} EXIT", "x={}; $x",
    "x={}; eval $x", "printf %s {} | sh", "printf %s {} | bash -s", "bash <(printf %s {})", ". <(printf %s {})",
    "source <(printf %s {})", "mapfile -C {} -c 1 y <<< 1", "mapfile -c1 -C{} y <<< 1", "readarray -C {} -c 1 y <<< 1",
    "env -S {}", "env -iS{}", "env --split-string={}", "script -qc {} /dev/null", "flock f -c {}", "flock -x f --command={}",
    "timeout 5 sh -c {}", "echo | xargs -I% sh -c {}", "find . -maxdepth 0 -exec sh -c {} \\;",
    "shopt -s expand_aliases\nalias q={}\nq", "compgen -C {} x", "bash <<'E'\n{}\nE", ". /dev/stdin <<< {}",
    "bash /dev/stdin <<< {}", "env bash -c {}", "exec sh -c {}", "command eval {}", "BASH_ENV=<(printf %s {}) bash -c :",
    "PROMPT_COMMAND={} bash -ic :", "xargs -a <(printf %s {}) env", "echo {} | xargs env", "printf %s {} | xargs -0 bash -c",
    "nohup bash -c {}", "trap {} DEBUG; :", "f() {{ eval \"$1\"; }}; f {}", "(exec bash -c {})",
    "echo ${{x:-$(bash -c {})}}", "cat <<E\n$(eval {})\nE", "setsid -w sh -c {}", "busybox sh -c {}", "xargs -I% % <<< {}",
    "read x <<< {}; $x", "IFS= read -r x <<< {}; eval \"$x\"", "alias q={}; shopt -s expand_aliases; eval q",
    "enable -f x y; eval {}", "bash --norc -c {}", "bash -ce {}", "bash +x -c {}", "sh -ec {}",
    "bash --rcfile <(printf %s {}) -i",
)  # fmt: skip
"""`{}` is the place of a command that is quoted."""
HIDING = (
    "x='a[$({})]'; : $((x))", "let 'a[$({})]=1'", "x='$({})'; : ${{x@P}}", "unset 'a[$({})]'", "printf -v 'a[$({})]' x",
    "test -v 'a[$({})]'", "[[ -v 'a[$({})]' ]]", "declare -i x='a[$({})]'", "x='a[$({})]'; : ${{y:x}}",
    "read 'a[$({})]' <<< 1", "[[ 'a[$({})]' -eq 1 ]]", "PS4='$({})'; set -x; :", "compgen -W '$({})'",
    "declare -n r='a[$({})]'; r=1", "x='a[$({})]'; ((x))", "x='a[$({})]'; y=${{z[x]}}", "x='y[$({})]'; : ${{!x}}",
    "printf -v x '\\x24({})'; : ${{x@P}}", "printf -v x 'a[\\x24({})]'; : $((x))", "set -- 'a[$({})]'; : $(($1))",
    "wait -n -p 'a[$({})]'",
)  # fmt: skip
"""Single quotes around a substitution that bash expands all the same."""
NAMES = (
    "bad x",
    "bad x",
    "bad",
    "'bad' x",
    "b\\ad x",
    '"bad" x',
    'b"a"d x',
    '$"bad" x',
    "$'bad' x",
    "$'\\x62ad' x",
    "ba${y}d x",
    "./bad x",
    "*/bad x",
    "{bad,x}",
)
NOISE = (
    "'", '"', "`", "$(", ")", "(", "{ ", "}", "${", "$((", "))", "<(", ">(", "<", ">", "\\", "\\\n", "\n", ";", ";;", "&",
    "|", "#", " #", " ", "<<E\n", "\nE\n", "$", "!", "=", "[", "]", "[[ ", " ]]", "case a in a) ", " esac ", "echo ", "a",
    "bad x", "then ", "do ", "fi", "done", "$'", '$"', "*", "~", "\t",
)  # fmt: skip
TOOLS = (
    "bash",
    "sh",
    "rbash",
    "cat",
    "env",
    "nice",
    "nohup",
    "timeout",
    "setsid",
    "xargs",
    "find",
    "stdbuf",
    "flock",
    "script",
    "setpriv",
    "busybox",
)

DENY = Policy([Rule(tool="shell", when={"command": "bad*"}, decide="deny")])
SECONDS = 8.0
"""Seconds until a line is stopped: some do not end."""


def random_line(source: random.Random) -> str:
    """A line that mostly runs `bad`, and sometimes is changed so that it may not, or is not valid."""
    line = source.choice(NAMES)
    for _ in range(source.choice((1, 1, 1, 2, 2, 3))):
        kind = source.random()
        if kind < 0.7:
            line = source.choice(WRAPPINGS).format(line)
        elif kind < 0.93:
            line = source.choice(QUOTING).format(shlex.quote(line))
        elif "'" not in line:
            line = source.choice(HIDING).format(line)
    for _ in range(source.choice((0, 0, 0, 1, 1, 2, 3))):
        at, noise = source.randrange(len(line) + 1), source.choice(NOISE)
        line = line[:at] + noise + line[at + source.choice((0, 0, 1)) :]
    return line


def missed_lines(lines: Sequence[str]) -> list[str]:
    """The lines that run `bad`, and about which neither a denial nor a question is the verdict of a rule that denies it.

    Without the expansion of file names: nobody knows before which names there are. A program named so is asked about.
    """
    without = [line for line in lines if DENY.evaluate("shell", {"command": line}).verdict is None]
    return lines_that_run_bad(without, expand_names=False)


def lines_that_run_bad(lines: Sequence[str], *, expand_names: bool = True) -> list[str]:
    """Run each line in a bash of its own, in an empty folder; those that run the program `bad`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools, mark = folder / "tools", folder / "mark"
        tools.mkdir()
        for tool in TOOLS:
            if (path := shutil.which(tool)) is not None:
                (tools / tool).symlink_to(path)
        (tools / "bad").write_text(f"#!/bin/sh\n: > {mark}\n")
        (tools / "bad").chmod(0o755)
        found = []
        for line in lines:
            work = folder / "work"
            (work / "b").mkdir(parents=True)
            shutil.copy(tools / "bad", work / "bad")
            shutil.copy(tools / "bad", work / "b" / "bad")
            limits = 'ulimit -t 2 -f 1000; FUNCNEST=20; LINE=$1; shift; eval "$LINE"\nwait'
            limits = limits if expand_names else f"set -f; {limits}"
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    ["/bin/bash", "--norc", "--noprofile", "-c", limits, "bash", line],
                    cwd=work, env={"PATH": str(tools), "LC_ALL": "C.UTF-8", "HOME": str(work)},
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    timeout=SECONDS, check=False, start_new_session=True,
                )  # fmt: skip
            shutil.rmtree(work, ignore_errors=True)
            if mark.exists():
                mark.unlink()
                found.append(line)
    return found

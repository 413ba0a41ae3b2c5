"""Analyses a shell command line into the commands that it runs, for policy rules. Pure functions; nothing is run.

The result serves two purposes. To *allow* a line, it must be plain: words and operators between commands, without expansions,
substitutions and redirections. To *deny* a command, it is searched everywhere in the line, and in lines that are passed to
another shell. A line that is not understood, or whose analysis needs more work than the limits permit, is neither plain nor
known.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from gateway.policy.shell_syntax import RUN_VARIABLE, Budget, NotUnderstood, Reader, SimpleCommand, TooMuch, Word

MAX_LENGTH = 100_000
"""Characters. A longer line is not analysed, and is neither plain nor known."""
MAX_DEPTH = 4
"""Lines inside each other, such as that of `bash -c` in a line. Deeper ones are not analysed."""
MAX_LINES = 64
"""Lines nested in one line."""
MAX_WORDS = 5_000
"""Words of the line and of the lines nested in it."""
MIN_WORK, WORK_PER_CHARACTER = 50_000, 8
"""Characters that are read or copied during the analysis of one line: at least `MIN_WORK`."""

_UNREADABLE = re.compile(r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f]")
_LOOSE_PATH = re.compile(r"//|/\.\.?(?:/|\s|$)|(?:^|\s)\./")
_BETWEEN = re.compile(r"[;&|\n(){}`]|\$\(")

SHELLS = frozenset(
    {
        "ash", "bash", "csh", "dash", "elvish", "fish", "ksh", "ksh93", "lksh", "loksh", "mksh", "nu", "oksh", "osh", "posh",
        "pwsh", "powershell", "rbash", "rksh", "rzsh", "sh", "tcsh", "xonsh", "yash", "zsh",
    }
)  # fmt: skip
"""Programs that take a command line behind an option, and else read commands from a file or from standard input."""
EVALUATORS = frozenset({"alias", "bind", "compgen", "complete", "eval", "expect", "mapfile", "readarray", "trap"})
"""Builtins and programs any of whose arguments may be a command line."""
WRAPPERS = frozenset(
    {
        "!", "-", "at", "batch", "builtin", "busybox", "bwrap", "capsh", "choom", "chpst", "chroot", "chrt", "command",
        "coproc", "dbus-run-session", "doas", "dumb-init", "eatmydata", "env", "exec", "fakeroot", "fd", "find", "firejail",
        "flock", "gdb", "gosu", "i386", "ionice", "jobs", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2", "ld-linux.so.2",
        "ld-musl-aarch64.so.1", "ld-musl-x86_64.so.1", "ld.so", "linux32", "linux64", "ltrace", "machinectl", "nice",
        "nocorrect", "noglob", "nohup", "nsenter", "numactl", "parallel", "pkexec", "prlimit", "proot", "repeat", "rlwrap",
        "runcon", "runuser", "schedtool", "screen", "script", "setarch", "setpriv", "setsid", "sg", "softlimit", "ssh",
        "start-stop-daemon", "stdbuf", "strace", "su", "su-exec", "sudo", "systemd-cat", "systemd-inhibit", "systemd-run",
        "taskset", "time", "timeout", "tini", "tmux", "torify", "torsocks", "toybox", "uclampset", "unbuffer", "unshare",
        "valgrind", "watch", "x-terminal-emulator", "x86_64", "xargs", "xterm",
    }
)  # fmt: skip
"""Programs that run a command given in their arguments."""
LINE_OPTIONS = {
    "env": re.compile(r"-[A-Za-z0]*?S(.*)|--s[a-z-]*(?:=(.*))?", re.DOTALL),
    **dict.fromkeys(
        ("capsh", "flock", "runuser", "script", "sg", "su"), re.compile(r"-[A-Za-z]*?c(.*)|--(?:c|s)[a-z-]*(?:=(.*))?", re.DOTALL)
    ),
    **dict.fromkeys(
        ("parallel", "screen", "ssh", "tmux", "watch", "xterm", "x-terminal-emulator"), re.compile(r"()(.*)", re.DOTALL)
    ),
}
"""Options of wrappers whose value is a command line, also where it is in the same word."""
_WITHOUT_COMMAND = frozenset(
    {"batch", "at", "chroot", "newgrp", "nsenter", "parallel", "runuser", "screen", "script", "sg", "su", "tmux", "unshare"}
)
"""Programs that start a shell, or read commands, where they get no command line."""
_WITH_OPERAND = frozenset({"chroot", "chrt", "flock", "gosu", "runuser", "setarch", "sg", "ssh", "su", "su-exec", "taskset"})
"""Programs that have an argument before the command."""
_STARTS_SHELL = re.compile(r"-[A-Za-z]*[si].*|--(?:shell|login)", re.DOTALL)
"""The options of sudo and doas with which they start a shell."""
_EVALUATING = frozenset(
    {
        "[", "declare", "export", "getopts", "let", "local", "mapfile", "nameref", "print", "printf", "read", "readarray",
        "readonly", "test", "typeset", "unset", "wait",
    }
)  # fmt: skip
"""Builtins that evaluate arguments as variable names or as arithmetic, with the substitutions in them."""
_RUNS_BUILTINS = re.compile(r"-.*|!|time|command|builtin|jobs|coproc", re.DOTALL)
"""What the shell runs its own builtins behind, and their options. Behind other wrappers, `.` is a folder."""
_EXEC = re.compile(r"-(?:exec|execdir|ok|okdir)|--?(?:exec|exec-batch|x|X)")
_REPLACES = re.compile(r"-[iIJ](.*)|--replace(?:=(.*))?", re.DOTALL)
"""The options of xargs that name the text which is replaced by its input."""
_READS_INPUT = re.compile(r"-(?:[^\Ws]*s\w*)?")
"""The options with which a shell reads commands from standard input, even if it has arguments."""
_INPUT_FILES = re.compile(r"-|/dev/(?:stdin|fd/.*)|/proc/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command. `text` is its words without quotes, `forms` are the texts that `ask` and `deny` rules are compared to."""

    text: str
    forms: frozenset[str]


@dataclass(frozen=True, slots=True)
class ShellLine:
    """An analysed line. `plain`: it does nothing but run its commands. `known`: it names every command that it runs."""

    text: str
    commands: tuple[ShellCommand, ...]
    plain: bool
    known: bool


@lru_cache(maxsize=8)
def parse(text: str) -> ShellLine:
    """Analyse a command line. Time and memory are limited whatever the line is."""
    if len(text) > MAX_LENGTH:
        return ShellLine(text, (), plain=False, known=False)
    analysis = _Analysis(Budget(max(MIN_WORK, WORK_PER_CHARACTER * len(text)), MAX_WORDS))
    analysis.run(text)
    odd = _UNREADABLE.search(text) is not None
    plain = analysis.plain and "\\\n" not in text and not odd
    return ShellLine(text, tuple(analysis.commands.values()), plain=plain, known=analysis.known and not odd)


@dataclass(slots=True)
class _Analysis:
    """The commands of a line and of the lines nested in it."""

    budget: Budget
    commands: dict[ShellCommand, ShellCommand] = field(default_factory=dict)
    plain: bool = True
    known: bool = True
    _todo: list[tuple[str, int]] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def run(self, line: str) -> None:
        self._add_line(line, 0)
        try:
            # Breadth first: a line that occurs twice is read at its least depth.
            for text, depth in self._todo:
                self._read(text, depth)
        except TooMuch:
            self.plain = self.known = False

    def _add_line(self, text: str, depth: int) -> None:
        """Read the line later. A shell joins continued lines, but not in single quotes: both readings count."""
        for reading in (text, text.replace("\\\n", "")):
            if reading in self._seen:
                continue
            if depth > MAX_DEPTH or len(self._seen) >= MAX_LINES:
                self.plain = self.known = False
                return
            self.budget.spend(len(reading))
            self._seen.add(reading)
            self._todo.append((reading, depth))

    def _read(self, text: str, depth: int) -> None:
        reader = Reader(text, self.budget)
        try:
            reader.read()
        except NotUnderstood:
            self.plain = self.known = False
        except TooMuch:
            self.plain = self.known = False
            # The commands until then can be denied.
            self.budget.left, self.budget.words = MIN_WORK, MAX_WORDS
        self.plain = self.plain and reader.plain
        evaluates = reader.evaluates
        for command in reader.commands:
            evaluates = self._take(command, depth) or evaluates
        self.known = self.known and not reader.surprising and not (evaluates and reader.hides)
        for nested in reader.nested:
            self._add_line(nested, depth + 1)
        if not self.known and depth == 0:
            # A shell may accept what is not understood here: the text between two operators may be a command.
            for piece in _BETWEEN.split(text):
                if words := piece.split():
                    self.budget.count_words(len(words))
                    self._add(words)

    def _add(self, words: Sequence[str], source: str = "") -> None:
        """Add a command with its forms."""
        text = " ".join(words)
        self.budget.spend(2 * len(text))
        forms = {text, source} if source else {text}
        wrapped = False
        for n, word in enumerate(words):
            name = posixpath.basename(word)
            rest = text if n == 0 else " ".join(words[n:])
            self.budget.spend(len(rest) + 1)
            forms.add(rest[len(word) - len(name) :])
            if wrapped:
                forms.add(name)
            wrapped = wrapped or _program(word) in WRAPPERS
            if not wrapped:
                break
        if _LOOSE_PATH.search(text):
            paths = [
                posixpath.normpath(re.sub("^//+", "/", word)) if "/" in word and "://" not in word else word for word in words
            ]
            forms |= {" ".join(paths), " ".join([posixpath.basename(paths[0]), *paths[1:]])}
        command = ShellCommand(text, frozenset(forms))
        self.commands[command] = command

    def _take(self, command: SimpleCommand, depth: int) -> bool:
        """Add a command, and the lines in its arguments. Returns whether it may evaluate its arguments."""
        words = command.words
        literals = [word.literal for word in words]
        self._add(literals, command.source)
        # A quoted 'git status' is one word, but its text is that of git with an argument.
        self.plain = self.plain and not re.search(r"\s", literals[0])
        # `$X -rf` runs a command that the line does not name; in zsh, `=rm` is rm; find replaces `{}`.
        self._unknown_if(any(RUN_VARIABLE.match(literal) for literal in literals))
        named = not words[0].dynamic and not literals[0].startswith("=") and "{}" not in literals[0]
        self.known = self.known and (named or literals[0] == "[")
        evaluates = False
        for n, literal in enumerate(literals):
            name = _program(literal)
            rest = words[n + 1 :] if name in SHELLS or name in EVALUATORS or name in WRAPPERS or name in _OTHERS else []
            self.budget.spend(len(rest))
            evaluates = evaluates or name in _EVALUATING
            # Its escapes can write what is evaluated later.
            self._unknown_if(name == "printf" and "-v" in literals and any("\\" in literal for literal in literals))
            if name in SHELLS:
                self._shell(name, rest, command.stdin, depth)
            elif name in EVALUATORS:
                self._evaluator(name, rest, depth)
            elif name in WRAPPERS:
                self._wrapper(name, rest, command.stdin, depth)
            elif name in _OTHERS and all(_RUNS_BUILTINS.fullmatch(literal) for literal in literals[:n]):
                self._other(name, rest, command.stdin, depth)
            if n == 0 and name not in WRAPPERS:
                break
        return evaluates

    def _lines(self, lines: Iterable[str], depth: int) -> None:
        self.plain = False
        for line in lines:
            if line:
                self._add_line(line, depth + 1)

    def _unknown_if(self, unknown: bool) -> None:
        self.known = self.known and not unknown

    def _shell(self, name: str, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        """Read what a shell runs: a line in its arguments. Script files are not read; without either, it reads its input."""
        self.plain = False
        self._unknown_if(any(word.dynamic for word in words))
        options = [n for n, word in enumerate(words) if word.literal[:1] in ("-", "+")]
        with_line = [n for n in options if "c" in words[n].literal.lower()]
        if with_line:
            self._unknown_if(with_line[0] + 1 >= len(words))
            attached = [words[n].literal.partition("=")[2] for n in with_line]
            self._lines([*attached, *(word.literal for word in words[with_line[0] + 1 :])], depth)
            return
        self._lines(stdin, depth)
        files = [word.literal for n, word in enumerate(words) if n not in options]
        if files:
            self._add(files)
        from_input = any(_READS_INPUT.fullmatch(words[n].literal) for n in options)
        self._unknown_if(not files or from_input or any(_INPUT_FILES.fullmatch(file) for file in files))

    def _evaluator(self, name: str, words: Sequence[Word], depth: int) -> None:
        if name == "eval":
            self._unknown_if(any(word.dynamic for word in words))
            line = " ".join(word.literal for word in words[1 if words and words[0].literal == "--" else 0 :])
            self.budget.spend(len(line))
            return self._lines([line], depth)
        if name in ("mapfile", "readarray") and not any(word.dynamic or "C" in word.literal for word in words):
            return
        self._unknown_if(any(word.dynamic for word in words) or name in ("bind", "expect"))
        lines = [word.literal for word in words]
        lines += [line.partition("=")[2] for line in lines] if name == "alias" else []
        lines += [re.sub(r"^-\w", "", line) for line in lines if line.startswith("-")]
        self._lines([line for line in lines if not line.startswith("-")], depth)

    def _other(self, name: str, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        """The builtins that read commands from files, or give a program another name."""
        if name in ("source", "."):
            self._unknown_if(any(word.dynamic or _INPUT_FILES.fullmatch(word.literal) for word in words))
            self._add([word.literal for word in words])
            self._lines(stdin, depth)
        elif name == "hash":
            self._unknown_if(any(word.dynamic or (word.literal.startswith("-") and "p" in word.literal) for word in words))
        elif name == "enable":
            self._unknown_if(any(word.dynamic or (word.literal.startswith("-") and "f" in word.literal) for word in words))
        else:
            self._unknown_if(True)

    def _wrapper(self, name: str, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        if name == "find":
            return self._find(words)
        self._unknown_if(name == "coproc" or _names_no_program(words, 1 if name in _WITH_OPERAND else 0))
        found = False
        if (option := LINE_OPTIONS.get(name)) is not None:
            for n, word in enumerate(words):
                if (match := option.fullmatch(word.literal)) is None:
                    continue
                found = True
                following = [words[n + 1].literal] if n + 1 < len(words) else []
                self._unknown_if(any(part.dynamic for part in words[n : n + 2]))
                self._lines([group for group in match.groups() if group] or following, depth)
        if name in _WITHOUT_COMMAND and not found:
            named = any(not word.literal.startswith("-") for word in words)
            self._unknown_if(not named or name in ("at", "batch", "newgrp", "runuser", "script", "su"))
            self._lines(stdin, depth)
        if name in ("sudo", "doas", "su", "runuser", "machinectl") and any(map(_STARTS_SHELL.fullmatch, _options(words))):
            self._unknown_if(name != "su" or not found)
            self._lines(stdin, depth)
        if name in ("xargs", "parallel"):
            self._from_input(words)

    def _find(self, words: Sequence[Word]) -> None:
        self._unknown_if(any(word.splits for word in words))
        for word, following in pairwise(words):
            if _EXEC.fullmatch(word.literal):
                self._unknown_if(following.dynamic or "{}" in following.literal)

    def _from_input(self, words: Sequence[Word]) -> None:
        """Words from standard input can become a program, or a part of a line."""
        names = [_program(word.literal) for word in words]
        if names and (names[-1] in WRAPPERS or names[-1] in SHELLS):
            self.known = False
        for n, word in enumerate(words):
            if (option := _REPLACES.fullmatch(word.literal)) is None:
                continue
            if any(name in SHELLS or name in EVALUATORS or name in WRAPPERS for name in names):
                self.known = False
            rest = [word.literal for word in words[n + 1 :]]
            attached = option.group(1) or option.group(2)
            replaced = attached or ("{}" if option.group() in ("-i", "--replace") or not rest else rest.pop(0))
            program = next((word for word in rest if not re.match(r"-|[0-9]+$", word)), "")
            self.known = self.known and replaced not in program


_OTHERS = frozenset({".", "source", "hash", "enable", "fc", "newgrp", "crontab", "rshell"})


def _options(words: Sequence[Word]) -> list[str]:
    """The options before the program, and the words that may be their values."""
    found: list[str] = []
    for word in words:
        if not word.literal.startswith("-") and not (found and found[-1].startswith("-")):
            break
        found.append(word.literal)
    return found


def _program(word: str) -> str:
    """The name of a program. File systems may ignore case, and shells have names with versions."""
    name = posixpath.basename(word).lower().removesuffix(".exe")
    return re.sub(r"(?<=sh)-?[0-9][0-9.]*$", "", name)


def _names_no_program(words: Sequence[Word], operands: int) -> bool:
    """Whether the word that may be the program is replaced by the shell.

    Options may have values, and there are `operands` words before the program: these are not the program.
    """
    after_option = False
    for word in words:
        if word.dynamic:
            return True
        if re.fullmatch(r"[A-Za-z_]\w*=.*|[0-9.]+[a-z]*", word.literal, re.DOTALL):
            continue
        if word.literal.startswith(("-", "+")):
            after_option = True
        elif after_option:
            after_option = False
        elif operands:
            operands -= 1
        else:
            return False
    return False

"""Analyses a shell command line into the commands that it runs, for policy rules. Pure functions; nothing is run.

The result serves two purposes. To *allow* a line, it must be plain: words and operators between commands, without expansions,
substitutions and redirections. To *deny* a command, it is searched everywhere in the line, and in lines that are passed to
another shell. A line that is not understood, or whose analysis needs more work than the limits permit, is neither plain nor
known.

Any other program may run its arguments, as words or as a line. What it may run so is kept apart: a rule that matches it asks.
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
MAX_ARGUMENTS = 256
"""Arguments that are read as lines."""
MAX_WORDS = 5_000
"""Words of the line and of the lines nested in it."""
MIN_WORK, WORK_PER_CHARACTER = 50_000, 16
"""Characters that are read or copied during the analysis of one line: at least `MIN_WORK`."""

_UNREADABLE = re.compile(r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f]")
_LOOSE_PATH = re.compile(r"//|/\.\.?(?:/|\s|$)|(?:^|\s)\./")
_QUOTES = str.maketrans("", "", "'\"\\")
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
LAUNCHERS = frozenset(
    {
        # Of the language of shells.
        "!", "-", "builtin", "command", "coproc", "exec", "jobs", "nocorrect", "noglob", "repeat", "time",
        "doas", "env", "find", "nice", "nohup", "sudo", "timeout", "xargs",
    }
)  # fmt: skip
"""What surely runs a command given in its arguments. What another program runs so is asked about."""
QUIET = frozenset(
    {
        ":", "[", "cat", "cd", "cp", "echo", "export", "grep", "head", "ls", "mkdir", "mv", "printf", "pwd", "rm", "tail", "tee",
        "test", "touch", "wc", "which",
    }
)  # fmt: skip
"""Usual programs that run no other one: their arguments are not asked about. One that is missing costs a question."""
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
"""What the shell runs its own builtins behind, and their options. Behind other launchers, `.` is a folder."""
_MAY_BE_LINE = re.compile(r"[\s;&|(){}`$<>]")
"""An argument without any of these is a word only."""
_EXEC = re.compile(r"-(?:exec|execdir|ok|okdir)|--?(?:exec|exec-batch|x|X)")
_SPLIT_STRING = re.compile(r"-[A-Za-z0]*?S(.*)|--s[a-z-]*(?:=(.*))?", re.DOTALL)
"""The option of env whose value is a command line."""
_REPLACES = re.compile(r"-[iIJ](.*)|--replace(?:=(.*))?", re.DOTALL)
"""The options of xargs that name the text which is replaced by its input."""
_READS_INPUT = re.compile(r"-(?:[^\Ws]*s\w*)?")
"""The options with which a shell reads commands from standard input, even if it has arguments."""
_INPUT_FILES = re.compile(r"-|/dev/(?:stdin|fd/.*)|/proc/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command. `text` is its words without quotes, `forms` are the texts that `ask` and `deny` rules are compared to.

    What its program may run: each of its `arguments` from one of the positions on, and `may_run`, the forms of the commands in
    lines among them.
    """

    text: str
    forms: frozenset[str]
    arguments: tuple[Words, ...] = ()
    may_run: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Words:
    """Arguments as one text, with the position of each, and that of the name in each that is a path, in ascending order."""

    text: str
    starts: tuple[int, ...]


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
    return ShellLine(text, analysis.found(), plain=plain, known=analysis.known and not odd)


@dataclass(slots=True)
class _Found:
    """A command that is found, with the forms of those that its program may run."""

    text: str
    forms: set[str]
    arguments: list[Words] = field(default_factory=list)
    may_run: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line to read. `owner` is the command whose program may run it; None for a line that a shell runs.

    `certain`: a shell runs it. `likely`: it is a command line if it is in the grammar. Any other argument may be any text.
    """

    text: str
    depth: int
    owner: _Found | None = None
    certain: bool = True
    likely: bool = True


@dataclass(slots=True)
class _Analysis:
    """The commands of a line and of the lines nested in it."""

    budget: Budget
    plain: bool = True
    known: bool = True
    _commands: dict[str, _Found] = field(default_factory=dict)
    _todo: list[_Line] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)
    _seen_arguments: set[tuple[str, int]] = field(default_factory=set)
    _owner: _Found | None = None
    """Of the line that is read."""
    _certain: bool = True
    _matters: bool = True
    """Whether what is not known in the line that is read makes the whole line not known."""

    def run(self, line: str) -> None:
        self._add_line(line, 0)
        try:
            # Breadth first: a line that occurs twice is read at its least depth.
            for one in self._todo:
                self._owner, self._certain, self._matters = one.owner, one.certain, one.likely
                self._read(one)
        except TooMuch:
            self.plain = self.known = False

    def found(self) -> tuple[ShellCommand, ...]:
        """Return the commands, each once."""
        return tuple(
            ShellCommand(one.text, frozenset(one.forms), tuple(dict.fromkeys(one.arguments)), frozenset(one.may_run))
            for one in self._commands.values()
        )

    def _add_line(self, text: str, depth: int) -> None:
        """Read the line later. A shell joins continued lines, but not in single quotes: both readings count."""
        if self._owner is not None:
            return self._add_argument(_Line(text, depth, self._owner, self._certain, self._matters))
        for reading in (text, text.replace("\\\n", "")):
            if reading in self._seen:
                continue
            if depth > MAX_DEPTH or len(self._seen) >= MAX_LINES:
                self.plain = self.known = False
                return
            self.budget.spend(len(reading))
            self._seen.add(reading)
            self._todo.append(_Line(reading, depth))

    def _add_argument(self, line: _Line) -> None:
        """Read a line that a program may run."""
        key = line.text, id(line.owner)
        if key in self._seen_arguments:
            return
        if line.depth > MAX_DEPTH or len(self._seen_arguments) >= MAX_ARGUMENTS:
            self.known = False
            return
        self.budget.spend(len(line.text))
        self._seen_arguments.add(key)
        self._todo.append(line)

    def _read(self, line: _Line) -> None:
        text, depth = line.text, line.depth
        reader, understood = Reader(text, self.budget), True
        try:
            reader.read()
        except NotUnderstood:
            understood, self._matters = False, self._matters and line.certain
            self.plain = self.plain and self._owner is not None
            self._unknown_if(True)
        except TooMuch:
            self.plain = self.known = False
            # The commands until then can be denied.
            self.budget.left, self.budget.words = MIN_WORK, MAX_WORDS
        self.plain = self.plain and (reader.plain or self._owner is not None)
        evaluates = reader.evaluates
        for command in reader.commands:
            evaluates = self._take(command, depth) or evaluates
        self._unknown_if(reader.surprising or (evaluates and reader.hides))
        for nested in reader.nested:
            self._add_line(nested, depth + 1)
        if not understood or (not self.known and depth == 0):
            # A shell may accept what is not understood here: the text between two operators may be a command.
            for piece in _BETWEEN.split(text):
                for words in {tuple(reading.split()) for reading in (piece, piece.translate(_QUOTES))} - {()}:
                    self.budget.count_words(len(words))
                    found = self._add(words)
                    if line.owner is not None and line.likely:
                        found.arguments.append(_joined(words[1:]))

    def _add(self, words: Sequence[str], source: str = "") -> _Found:
        """Add a command with its forms. One that a program only may run is added to the command of that program."""
        text = " ".join(words)
        self.budget.spend(2 * len(text))
        forms = {text, source} if source else {text}
        launched = False
        for n, word in enumerate(words):
            name = posixpath.basename(word)
            rest = text if n == 0 else " ".join(words[n:])
            self.budget.spend(len(rest) + 1)
            forms.add(rest[len(word) - len(name) :])
            if launched:
                forms.add(name)
            launched = launched or _program(word) in LAUNCHERS
            if not launched:
                break
        if _LOOSE_PATH.search(text):
            paths = [
                posixpath.normpath(re.sub("^//+", "/", word)) if "/" in word and "://" not in word else word for word in words
            ]
            forms |= {" ".join(paths), " ".join([posixpath.basename(paths[0]), *paths[1:]])}
        if self._owner is not None:
            self._owner.may_run |= forms
            return self._owner
        command = self._commands.setdefault(text, _Found(text, forms))
        command.forms |= forms
        return command

    def _take(self, command: SimpleCommand, depth: int) -> bool:
        """Add a command, and the lines in its arguments. Returns whether it may evaluate its arguments."""
        words = command.words
        literals = [word.literal for word in words]
        found = self._add(literals, command.source)
        # A quoted 'git status' is one word, but its text is that of git with an argument.
        self.plain = self.plain and (self._owner is not None or not any(map(str.isspace, literals[0])))
        # `$X -rf` runs a command that the line does not name; in zsh, `=rm` is rm; find replaces `{}`.
        self._unknown_if(any(RUN_VARIABLE.match(literal) for literal in literals))
        named = not words[0].dynamic and not literals[0].startswith("=") and "{}" not in literals[0]
        # `count(*)` among the arguments is SQL.
        self._unknown_if(not named and literals[0] not in (("[", "*") if self._owner is not None else ("[",)))
        evaluates, program = False, _program(literals[0])
        for n, literal in enumerate(literals):
            name = _program(literal)
            rest = words[n + 1 :] if name in SHELLS or name in EVALUATORS or name in LAUNCHERS or name in _OTHERS else []
            self.budget.spend(len(rest))
            evaluates = evaluates or name in _EVALUATING
            # Its escapes can write what is evaluated later.
            self._unknown_if(name == "printf" and "-v" in literals and any("\\" in literal for literal in literals))
            if name in SHELLS:
                self._shell(rest, command.stdin, depth)
            elif name in EVALUATORS:
                self._evaluator(name, rest, depth)
            elif name in LAUNCHERS:
                self._launcher(name, rest, command.stdin, depth)
            elif name in _OTHERS and all(_RUNS_BUILTINS.fullmatch(literal) for literal in literals[:n]):
                self._other(name, rest, command.stdin, depth)
            if n == 0 and name not in LAUNCHERS:
                break
        if (
            (self._owner is None or self._matters)
            and program not in SHELLS
            and program not in EVALUATORS
            and program not in QUIET
        ):
            self._arguments(found, command, depth)
        return evaluates

    def _arguments(self, found: _Found, command: SimpleCommand, depth: int) -> None:
        """Add what the program of a command may run: its arguments, as words and as lines, and its input."""
        words = command.words[1:]
        # A brace expansion is several words.
        arguments = _joined([part for word in words for part in (word.static.split() if word.dynamic else (word.static,))])
        self.budget.spend(len(arguments.text) + len(arguments.starts))
        found.arguments.append(arguments)
        in_shell = after_line_option = False
        for n, word in enumerate(words):
            text, is_option = word.literal, word.literal[:1] == "-"
            takes_line = is_option and "c" in text.lower()
            lines = [text, text.partition("=")[2], text[2:]] if is_option else [text]
            for line in dict.fromkeys((*lines, *([word.static] if word.dynamic else ()))):
                if line and (after_line_option or _MAY_BE_LINE.search(line)):
                    certain, likely = in_shell and after_line_option, after_line_option or takes_line
                    self._add_argument(_Line(line, depth + 1, found, certain, likely))
            self._unknown_if(in_shell and word.dynamic)
            after_line_option = takes_line
            in_shell = in_shell or _program(text) in SHELLS
            if _program(text) == "xargs":
                self.budget.spend(len(words))
                self._from_input(words[n + 1 :])
        for line in command.stdin:
            self._add_argument(_Line(line, depth + 1, found, in_shell, in_shell))

    def _lines(self, lines: Iterable[str], depth: int) -> None:
        self.plain = self.plain and self._owner is not None
        for line in lines:
            if line:
                self._add_line(line, depth + 1)

    def _unknown_if(self, unknown: bool) -> None:
        self.known = self.known and not (unknown and self._matters)

    def _shell(self, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        """Read what a shell runs: a line in its arguments. Script files are not read; without either, it reads its input."""
        self.plain = self.plain and self._owner is not None
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
        for first in range(min(len(files), 1 + bool(options))):
            # The first may be the value of an option.
            self._add(files[first:])
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
        # Expansions of words are evaluated behind `#` too.
        lines += [f'"{line}"' for line in lines] if name == "compgen" else []
        lines += [line.partition("=")[2] for line in lines] if name == "alias" else []
        lines += [re.sub(r"^-\w", "", line) for line in lines if line.startswith("-")]
        self._lines([line for line in lines if not line.startswith("-")], depth)

    def _other(self, name: str, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        """The builtins and programs that read commands from files or input, or give a program another name."""
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

    def _launcher(self, name: str, words: Sequence[Word], stdin: Sequence[str], depth: int) -> None:
        if name == "find":
            return self._find(words)
        self._unknown_if(name == "coproc" or _names_no_program(words))
        if name in ("sudo", "doas") and any(map(_STARTS_SHELL.fullmatch, _options(words))):
            self._unknown_if(True)
            self._lines(stdin, depth)
        if name == "env":
            self._split_string(words, depth)
        if name == "xargs":
            self._from_input(words)

    def _split_string(self, words: Sequence[Word], depth: int) -> None:
        """Read the line that env takes behind an option, which may be in the same word."""
        for n, word in enumerate(words):
            if (option := _SPLIT_STRING.fullmatch(word.literal)) is not None:
                attached = [group for group in option.groups() if group]
                self._lines(attached or [following.literal for following in words[n + 1 : n + 2]], depth)

    def _find(self, words: Sequence[Word]) -> None:
        self._unknown_if(any(word.splits for word in words))
        for word, following in pairwise(words):
            if _EXEC.fullmatch(word.literal):
                self._unknown_if(following.dynamic or "{}" in following.literal)

    def _from_input(self, words: Sequence[Word]) -> None:
        """Words from standard input can become a program, or a part of a line."""
        names = [_program(word.literal) for word in words]
        self._unknown_if(bool(names) and (names[-1] in LAUNCHERS or names[-1] in SHELLS))
        runs_line = any(name in SHELLS or name in EVALUATORS or name in LAUNCHERS for name in names)
        for n, word in enumerate(words):
            if (option := _REPLACES.fullmatch(word.literal)) is None:
                continue
            self._unknown_if(runs_line)
            self.budget.spend(len(words) - n)
            rest = [word.literal for word in words[n + 1 :]]
            attached = option.group(1) or option.group(2)
            replaced = attached or ("{}" if option.group() in ("-i", "--replace") or not rest else rest.pop(0))
            program = next((word for word in rest if not re.match(r"-|[0-9]+$", word)), "")
            self._unknown_if(replaced in program)


_OTHERS = frozenset({".", "at", "batch", "crontab", "enable", "fc", "hash", "newgrp", "parallel", "rshell", "source", "su"})


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


def _joined(words: Sequence[str]) -> Words:
    starts, at = list[int](), 0
    for part in words:
        # Behind the slashes of a path, the name of an option, and its letter.
        inner = {part.rfind("/") + 1}
        if part.startswith("-"):
            inner |= {part.find("=") + 1, 0 if part.startswith("--") else 2}
        starts += sorted({at, *(at + start for start in inner if start < len(part))})
        at += len(part) + 1
    return Words(" ".join(words), tuple(starts))


def _names_no_program(words: Sequence[Word]) -> bool:
    """Whether the word that may be the program is replaced by the shell. Options may have values, which are not the program."""
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
        else:
            return False
    return False

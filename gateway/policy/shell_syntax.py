"""Reads a text with the grammar of bash and finds its simple commands, with their words. It runs and expands nothing.

Compound commands are read loosely: a reserved word is skipped, and a command is expected behind it. The reader may therefore find
commands that are none, but not overlook one. What it cannot read raises NotUnderstood. Time and memory are linear in the length
of the text, apart from arithmetic that is read twice, which `Budget` bounds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_NESTING = 40
"""Substitutions, groups and expansions inside each other."""


class NotUnderstood(Exception):
    """The text is not in the grammar, or is in a part of it that is not analysed."""


class TooMuch(Exception):
    """The analysis of a line needs more work than it may."""


@dataclass(slots=True)
class Budget:
    """The work that is left for a line, in characters that are read or copied, and the number of words that it may still have."""

    left: int
    words: int

    def spend(self, work: int) -> None:
        """Raises TooMuch when nothing is left."""
        self.left -= work
        if self.left < 0:
            raise TooMuch

    def count_words(self, words: int = 1) -> None:
        """Raises TooMuch when there are more words than are left."""
        self.words -= words
        if self.words < 0:
            raise TooMuch


@dataclass(frozen=True, slots=True)
class Word:
    """A word. `literal` is its text without quotes and escapes, where expansions stay as they are written.

    `static` is the same without expansions, as if variables were empty. `dynamic`: the shell replaces a part of it.
    `splits`: that may result in several words. `plain`: it has no syntax but ordinary quotes and escapes.
    """

    literal: str
    source: str
    static: str
    dynamic: bool = False
    splits: bool = False
    quoted: bool = False
    plain: bool = True


@dataclass(slots=True)
class SimpleCommand:
    """A command with its words, and the texts that it gets as standard input by `<<` and `<<<`."""

    words: list[Word]
    source: str
    stdin: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _HereDocument:
    delimiter: str
    tabs: bool
    quoted: bool
    stdin: list[str]


class _Expansion(str):
    """A part of a word that the shell replaces."""

    __slots__ = ()


class _Escaped(str):
    """The inside of `$'…'` with its escapes."""

    __slots__ = ()


@dataclass(slots=True)
class _Parts:
    """A word that is being read."""

    start: int
    condition: bool
    text: list[str] = field(default_factory=list)
    dynamic: bool = False
    splits: bool = False
    quoted: bool = False
    plain: bool = True


_ENDS = " \t\n;&|)"
_RESERVED = frozenset({"if", "then", "elif", "else", "fi", "while", "until", "do", "done", "{", "}", "!"})
_BLANKS = re.compile(r"(?:[ \t]|\\\n)+")
_ORDINARY = re.compile(r"[^\s\\'\"$`;&|<>()*?\[{]+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.:@+-]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
RUN_VARIABLE = re.compile(r"(?:BASH_ENV|BASH_ALIASES|BASH_CMDS|PROMPT_COMMAND|PS[0124])(?:$|[+=\[])|BASH_FUNC_")
"""The name of a variable that a shell runs or expands, or an assignment to it. ENV is one for interactive shells only;
BASH_FUNC_NAME%% is an exported function."""
_INTERACTIVE_OPTION = re.compile(r"\s[-+]\w*i")
_SIGN = re.compile(r"[;&|]")
_LETTER = re.compile(r"[A-Za-z_]")
_PARENTHESES = re.compile(r"\([ \t]*\)")
_RESERVED_SIGN = re.compile(r"[{}!]|\[\[")
_TIME_OPTION = re.compile(r"-p|--")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_REDIRECT = re.compile(r"&>>?|[0-9]*(?:<<<|<<-|<<|<>|<&|>>|>&|>\||<|>)")
_HARMLESS = re.compile(r"[12]?>&[12]|(?:[12]?>>?|&>>?)[ \t]*/dev/null")
_OPERATOR = re.compile(r"&&|\|\||\|&|[;&|]")
_CASE_END = re.compile(r";;&|;;|;&")
_DOUBLE = re.compile(r'[^"\\$`]+')
_SINGLE = re.compile(r"'[^']*'")
_ANSI = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_BRACES = str.maketrans("{,}", "   ")
_BACKQUOTES = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL)
_BRACED = re.compile(r"[^}\\'\"$`<>]+")
_ARITHMETIC = re.compile(r"[^()\\'\"$`]+")
_HIDDEN = re.compile(r"`|\$[({\[]|\$$")
_VARIABLE = re.compile(r"\w+")
_EVALUATED = re.compile(r"\[|:(?![-=?+])")


class Reader:
    """Reads one text. `commands` has what was found, also after an exception; `nested` has the texts in backquotes.

    `plain`: nothing but commands with plain words, operators between them, and harmless redirections. `evaluates`: the shell may
    expand the value of a variable again (as arithmetic does). `hides`: quotes protect a text that has a substitution.
    `surprising`: a construct whose meaning depends on the shell.
    """

    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._end, self._at, self._depth = text, len(text), 0, 0
        self._budget = budget
        self._documents: list[_HereDocument] = []
        self.commands: list[SimpleCommand] = []
        self.nested: list[str] = []
        self.plain, self.evaluates, self.hides, self.surprising = True, False, False, False
        self._interactive: bool | None = None

    def read(self) -> None:
        """Read the whole text. Raises NotUnderstood and TooMuch."""
        self._list("")
        if self._documents:
            raise NotUnderstood

    # -- lists and compound commands --------------------------------------------------------------------------------------

    def _list(self, closing: str) -> str:
        """Read commands until `closing`, which is `)`, `;;` or the end of the text; returns what was found."""
        complete = True
        while True:
            self._blanks()
            char = self._peek()
            if not char:
                if closing or not complete:
                    raise NotUnderstood
                return ""
            if char == "\n":
                self._newline()
            elif char == ")":
                self._at = self._end_of(closing, ")", self._at + 1)
                return ")"
            elif char in ";&|" and not self._is_redirect():
                if (ended := _CASE_END.match(self._text, self._at)) is not None:
                    self._at = self._end_of(closing, ";;", ended.end())
                    return ";;"
                complete = self._operator(complete)
            elif char == "(":
                self._parenthesis()
                complete = True
            else:
                complete = True
                if self._command() == "esac":
                    self._end_of(closing, ";;", self._at)
                    return "esac"

    def _end_of(self, closing: str, found: str, end: int) -> int:
        if closing != found or (found == ")" and self._documents):
            raise NotUnderstood
        return end

    def _operator(self, complete: bool) -> bool:
        """Read an operator; returns whether a list may end behind it."""
        operator = _OPERATOR.match(self._text, self._at)
        assert operator is not None
        # An operator without a command before it is an error in bash.
        self.plain = self.plain and complete and bool(self.commands)
        self._at = operator.end()
        return operator.group() in ";&"

    def _parenthesis(self) -> None:
        self.plain = False
        if self._text.startswith("((", self._at) and self._arithmetic(self._at + 2):
            return
        self._at += 1
        self._nest(")")

    def _nest(self, closing: str) -> str:
        """Read commands inside a substitution or a group, until its end."""
        if self._documents:
            raise NotUnderstood
        self._deeper()
        found = self._list(closing)
        self._depth -= 1
        return found

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise NotUnderstood

    def _command(self) -> str:
        """Read a reserved word, a compound command that has a syntax of its own, or a simple command; returns the first word."""
        found = self._match(_NAME, self._at) or _RESERVED_SIGN.match(self._text, self._at)
        word = found.group() if found is not None and self._ends_word(found.end()) else ""
        if word in _RESERVED:
            self.plain = False
            self._at += len(word)
        elif word == "case":
            self._case()
        elif word in ("for", "select"):
            self._for(len(word))
        elif word == "function":
            self._function()
        elif word == "time":
            self._time()
        elif word == "[[":
            self._condition()
        elif word == "esac":
            self._at += len(word)
        else:
            self._simple()
        return word

    def _function(self) -> None:
        self.plain = False
        self._at += len("function")
        self._blanks()
        self._word()
        self._blanks()
        self._function_parentheses()

    def _time(self) -> None:
        self._at += len("time")
        self.plain = False
        self.commands.append(SimpleCommand([Word("time", "time", "time")], "time"))
        self._blanks()
        while (option := _TIME_OPTION.match(self._text, self._at)) and self._ends_word(option.end()):
            self._at = option.end()
            self._blanks()

    def _case(self) -> None:
        self.plain = False
        self._at += len("case")
        self._blanks()
        self._word()
        self._space()
        if not self._take_word("in"):
            raise NotUnderstood
        self._deeper()
        while True:
            self._space()
            if self._take_word("esac"):
                break
            if self._peek() == "(":
                self._at += 1
                self._blanks()
            while True:
                self._word()
                self._blanks()
                if self._peek() != "|":
                    break
                self._at += 1
                self._blanks()
            if self._peek() != ")":
                raise NotUnderstood
            self._at += 1
            if self._list(";;") == "esac":
                break
        self._depth -= 1

    def _for(self, length: int) -> None:
        self.plain = False
        self._at += length
        self._blanks()
        if self._text.startswith("((", self._at):
            if not self._arithmetic(self._at + 2):
                raise NotUnderstood
            return
        name = self._word()
        if _NAME.fullmatch(name.source) is None or RUN_VARIABLE.match(name.source):
            raise NotUnderstood
        self._space()
        if self._take_word("in"):
            self._blanks()
            while self._peek() not in ("", "\n", ";", "&", "|", ")"):
                self._word()
                self._blanks()

    def _condition(self) -> None:
        """Read `[[ … ]]`."""
        self.plain, self.evaluates = False, True
        self._at += 2
        while True:
            self._budget.spend(1)
            if self._text.startswith("]]", self._at) and self._ends_word(self._at + 2) and self._text[self._at - 1] in " \t\n":
                self._at += 2
                return
            char = self._peek()
            if char in ("", ";"):
                raise NotUnderstood
            if char == "\n" and self._documents:
                raise NotUnderstood
            if char in "<>" and not self._text.startswith("(", self._at + 1):
                self._at += 1
            elif (blank := self._match(_BLANKS, self._at)) is not None:
                self._at = blank.end()
            elif char in "\n!()|&":
                self._at += 1
            elif char == "#" and self._text[self._at - 1] in " \t\n":
                raise NotUnderstood
            else:
                self._word(condition=True)

    def _function_parentheses(self) -> bool:
        found = self._match(_PARENTHESES, self._at)
        if found is None:
            return False
        self._at = found.end()
        return True

    # -- simple commands --------------------------------------------------------------------------------------------------

    def _simple(self) -> None:
        command = SimpleCommand([], "")
        start = end = self._at
        redirects = False
        while True:
            self._blanks()
            char = self._peek()
            if char in ("", "\n", ")"):
                break
            if self._is_redirect():
                self._redirect(command)
                redirects = True
            elif char in ";&|":
                break
            elif char == "(":
                if len(command.words) != 1 or not self._function_parentheses():
                    raise NotUnderstood
                self.plain = False
                return
            else:
                word = self._word()
                if not command.words and _ASSIGNMENT.match(word.source):
                    self.plain = False
                    self._assigned(word)
                else:
                    command.words.append(word)
                    self.plain = self.plain and word.plain
            end = self._at
        command.source = self._text[start:end]
        self._budget.spend(end - start)
        if command.words:
            self.commands.append(command)
        elif redirects:
            self.plain = False

    def _assigned(self, word: Word) -> None:
        name = word.source.partition("=")[0]
        if "[" in name:
            self.evaluates = True
        if RUN_VARIABLE.match(name) or (name == "ENV" and self._has_interactive_shell()):
            self.surprising = True
            self.nested.append(word.literal.partition("=")[2])

    def _has_interactive_shell(self) -> bool:
        """Whether a command of the text has an option with `i` behind `sh`. The text is searched once."""
        if self._interactive is None:
            self._budget.spend(len(self._text))
            behind_shell = (part.partition("sh")[2] for part in _SIGN.split(self._text))
            self._interactive = any(_INTERACTIVE_OPTION.search(rest) for rest in behind_shell)
        return self._interactive

    def _is_redirect(self) -> bool:
        found = _REDIRECT.match(self._text, self._at)
        return found is not None and not (found.group() in ("<", ">") and self._text.startswith("(", found.end()))

    def _redirect(self, command: SimpleCommand) -> None:
        found = self._match(_REDIRECT, self._at)
        assert found is not None
        start, self._at = self._at, found.end()
        operator = found.group().lstrip("0123456789")
        self._blanks()
        at = self._at
        target = self._word()
        if operator in ("<<", "<<-"):
            self.plain = False
            if target.dynamic:
                raise NotUnderstood
            self._documents.append(_HereDocument(target.literal, operator == "<<-", target.quoted, command.stdin))
        elif operator == "<<<":
            self.plain = False
            command.stdin.append(target.literal)
        elif _HARMLESS.fullmatch(self._text[start : self._at]) is None:
            self.plain = False
        if at == self._at:
            raise NotUnderstood

    def _newline(self) -> None:
        """Read a line end, and the here-documents that begin behind it."""
        self._at += 1
        documents, self._documents = self._documents, []
        for document in documents:
            start = self._at
            while True:
                if self._at >= self._end:
                    raise NotUnderstood
                until = self._text.find("\n", self._at)
                until = self._end if until < 0 else until
                line = self._text[self._at : until]
                body_end, self._at = self._at, min(until + 1, self._end)
                if (line.lstrip("\t") if document.tabs else line) == document.delimiter:
                    break
                if line.endswith("\\") and not document.quoted:
                    # The next line continues it, and is no delimiter.
                    raise NotUnderstood
            body = self._text[start:body_end]
            self._budget.spend(len(body))
            document.stdin.append(body)
            if not document.quoted:
                self._expansions(body)
            elif _HIDDEN.search(body):
                self.hides = True

    def _expansions(self, body: str) -> None:
        """Read a text in which only expansions are special."""
        inner = Reader(body, self._budget)
        inner._depth = self._depth + 1
        if inner._depth > MAX_NESTING:
            raise NotUnderstood
        try:
            inner._quoted_text(document=True)
        finally:
            self.commands += inner.commands
            self.nested += inner.nested
            self.evaluates, self.hides = self.evaluates or inner.evaluates, self.hides or inner.hides
            self.surprising = self.surprising or inner.surprising

    # -- words ------------------------------------------------------------------------------------------------------------

    def _word(self, *, condition: bool = False) -> Word:
        """Read a word. Raises NotUnderstood where there is none."""
        text, start = self._text, self._at
        self._budget.count_words()
        found = _Parts(start, condition)
        while self._at < self._end:
            self._budget.spend(1)
            if (run := self._match(_ORDINARY, self._at)) is not None:
                found.text.append(run.group())
                self._at = run.end()
                continue
            char = text[self._at]
            if char in _ENDS or not _READ_IN_WORD.get(char, Reader._read_odd_character)(self, found):
                break
        source = text[start : self._at]
        if not source:
            raise NotUnderstood
        literal = "".join(found.text)
        static = _without_expansions(found.text) if found.dynamic else literal
        return Word(literal, source, static, found.dynamic, found.splits, found.quoted, found.plain)

    def _read_process(self, found: _Parts) -> bool:
        """Read `<(…)` or `>(…)`; False for a redirection, which ends the word."""
        at = self._at
        if not self._text.startswith("(", at + 1):
            return False
        self._at += 2
        self._nest(")")
        found.dynamic, found.plain = True, False
        found.text.append(_Expansion(self._text[at : self._at]))
        return True

    def _read_parenthesis(self, found: _Parts) -> bool:
        """Read the elements of an array; False for a parenthesis that ends the word."""
        before = self._text[found.start : self._at]
        if found.condition or _FUNCTION.fullmatch(before):
            return False
        if _ASSIGNMENT.fullmatch(before) is None:
            raise NotUnderstood
        self._array()
        found.plain = False
        return False

    def _read_escape(self, found: _Parts) -> bool:
        following = self._text[self._at + 1 : self._at + 2]
        if not following:
            raise NotUnderstood
        self._at += 2
        if following == "\n":
            found.plain = False
        else:
            found.quoted = True
            found.text.append(following)
            self.hides = self.hides or following in "$`"
        return True

    def _read_single_quotes(self, found: _Parts) -> bool:
        if (single := self._match(_SINGLE, self._at)) is None:
            raise NotUnderstood
        self._at, found.quoted = single.end(), True
        found.text.append(single.group()[1:-1])
        self.hides = self.hides or _HIDDEN.search(found.text[-1]) is not None
        return True

    def _read_double_quotes(self, found: _Parts) -> bool:
        found.quoted = True
        if self._double(found.text):
            found.dynamic, found.plain = True, False
        return True

    def _read_dollar(self, found: _Parts) -> bool:
        text, at = self._text, self._at
        found.plain = False
        if text.startswith("'", at + 1):
            if (ansi := self._match(_ANSI, at + 1)) is None:
                raise NotUnderstood
            self._at, found.quoted = ansi.end(), True
            content = ansi.group()[1:-1]
            found.text.append(_Escaped(content) if "\\" in content else content)
            found.dynamic = found.dynamic or "\\" in content
            self.hides = self.hides or "\\" in content or _HIDDEN.search(content) is not None
        elif text.startswith('"', at + 1):
            self._at = at + 1
            self._read_double_quotes(found)
        elif self._dollar(quoted=False):
            found.dynamic = found.splits = True
            found.text.append(_Expansion(text[at : self._at]))
        else:
            found.text.append("$")
        return True

    def _read_backquotes(self, found: _Parts) -> bool:
        at = self._at
        self._backquotes(quoted=False)
        found.dynamic = found.splits = True
        found.plain = False
        found.text.append(_Expansion(self._text[at : self._at]))
        return True

    def _read_pattern(self, found: _Parts) -> bool:
        """Read a character of a glob or of a brace expansion; `{}` is neither."""
        literal = "{}" if self._text.startswith("{}", self._at) else self._text[self._at]
        self._at += len(literal)
        found.text.append(_Expansion(literal) if literal in "*?[" else literal)
        found.dynamic = found.dynamic or literal != "{}"
        return True

    def _read_odd_character(self, found: _Parts) -> bool:
        """White space that does not separate words."""
        found.text.append(self._text[self._at])
        self._at += 1
        found.plain = False
        return True

    def _array(self) -> None:
        """Read the elements of `name=(…)`."""
        self.evaluates = True
        self._deeper()
        self._at += 1
        while True:
            self._space()
            if self._peek() == ")":
                self._at += 1
                break
            self._word()
        self._depth -= 1

    def _double(self, parts: list[str]) -> bool:
        """Read text in double quotes; whether it has expansions."""
        self._at += 1
        dynamic = self._quoted_text(parts)
        if self._peek() != '"':
            raise NotUnderstood
        self._at += 1
        return dynamic

    def _quoted_text(self, parts: list[str] | None = None, *, document: bool = False) -> bool:
        """Read text in which expansions are special, until a double quote, or until the end of a here-document."""
        text, dynamic = self._text, False
        found: list[str] = [] if parts is None else parts
        while self._at < self._end:
            self._budget.spend(1)
            if (run := self._match(_DOUBLE, self._at)) is not None:
                found.append(run.group())
                self._at = run.end()
                continue
            at, char = self._at, text[self._at]
            if char == '"':
                if not document:
                    return dynamic
                self._at += 1
                found.append(char)
            elif char == "\\":
                following = text[at + 1 : at + 2]
                self._at += 2
                if following == "`" or (following == "$" and text[self._at : self._at + 1] in ("", "(", "{", "[", '"')):
                    self.hides = True
                if following != "\n":
                    found.append(following if following and following in '$`"\\' else "\\" + following)
            elif char == "`":
                self._backquotes(quoted=not document)
                dynamic = True
                found.append(_Expansion(text[at : self._at]))
            elif self._dollar(quoted=True):
                dynamic = True
                found.append(_Expansion(text[at : self._at]))
            else:
                found.append("$")
        return dynamic

    def _dollar(self, *, quoted: bool) -> bool:
        """Read an expansion; False for a dollar sign that begins none."""
        text, at = self._text, self._at
        following = text[at + 1 : at + 2]
        if following == "(":
            if text.startswith("((", at + 1) and self._arithmetic(at + 3):
                return True
            self._at = at + 2
            self._nest(")")
        elif following == "{":
            self._braces(quoted)
        elif following == "[":
            raise NotUnderstood
        elif (parameter := self._match(_PARAMETER, at + 1)) is not None:
            self._at = parameter.end()
        else:
            self._at = at + 1
            return False
        return True

    def _backquotes(self, *, quoted: bool) -> None:
        found = self._match(_BACKQUOTES, self._at)
        if found is None:
            raise NotUnderstood
        self._at = found.end()
        inner = re.sub(r'\\([$`\\"])' if quoted else r"\\([$`\\])", r"\1", found.group(1))
        self.nested.append(inner)
        if quoted and '\\"' in found.group(1):
            # Shells differ in what they make of it.
            self.surprising = True

    def _braces(self, quoted: bool) -> None:
        """Read `${…}`."""
        self._at += 2
        if self._peek() in ("", " ", "\t", "\n", "|", "("):
            raise NotUnderstood
        variable = self._match(_VARIABLE, self._at)
        if self._peek() == "!" or (variable and _EVALUATED.match(self._text, variable.end())):
            self.evaluates = True
        closing = self._text.find("}", self._at)
        closing = self._end if closing < 0 else closing
        self._budget.spend(closing - self._at)
        if self._text.find("@P", self._at, closing) >= 0:
            # The value is expanded, wherever it comes from.
            self.surprising = True
        self._deeper()
        while (char := self._peek()) != "}":
            self._budget.spend(1)
            if not char:
                raise NotUnderstood
            if (run := self._match(_BRACED, self._at)) is not None:
                self._at = run.end()
            elif char in '"$`':
                self._expansion(quoted=quoted)
            elif char == "\\":
                self._at += 2
            else:
                self._quote_or_process(char, quoted)
        self._at += 1
        self._depth -= 1

    def _quote_or_process(self, char: str, quoted: bool) -> None:
        """Read a single quote, `<` or `>` in `${…}`. What they are in double quotes depends on the operator."""
        if char == "'":
            single = self._match(_SINGLE, self._at)
            if quoted or single is None:
                raise NotUnderstood
            self._at = single.end()
            self.hides = self.hides or _HIDDEN.search(single.group()[:-1]) is not None
        elif not self._text.startswith("(", self._at + 1):
            self._at += 1
        elif quoted:
            raise NotUnderstood
        else:
            self._at += 2
            self._nest(")")

    def _expansion(self, *, quoted: bool) -> None:
        """Read a double quote, a dollar sign or a backquote, in `${…}` or in arithmetic."""
        char = self._peek()
        if char == '"':
            self._double([])
        elif char == "`":
            self._backquotes(quoted=quoted)
        elif self._text.startswith(("$'", '$"'), self._at):
            raise NotUnderstood
        else:
            self._dollar(quoted=quoted)

    def _arithmetic(self, at: int) -> bool:
        """Read an arithmetic expression that begins at `at`, behind `((`; False, at the same position, if it is none."""
        before, self._at, level = self._at, at, 0
        self._deeper()
        while level >= 0:
            self._budget.spend(1)
            char = self._peek()
            if (run := self._match(_ARITHMETIC, self._at)) is not None:
                self._at = run.end()
                self.evaluates = self.evaluates or _LETTER.search(run.group()) is not None
            elif char and char in "()":
                level += 1 if char == "(" else -1
                self._at += 1
            elif char and char in '"$`':
                self.evaluates = True
                self._expansion(quoted=True)
            elif char:
                raise NotUnderstood
            else:
                break
        self._depth -= 1
        # Another parenthesis must follow; else it is a group in a group.
        complete = level < 0 and self._peek() == ")"
        self._at = self._at + 1 if complete else before
        return complete

    # -- blanks -----------------------------------------------------------------------------------------------------------

    def _match(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """Match at a position, and spend the characters that the pattern has matched."""
        found = pattern.match(self._text, at)
        if found is not None:
            self._budget.spend(found.end() - at)
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _ends_word(self, at: int) -> bool:
        return at >= self._end or self._text[at] in " \t\n;&|<>()"

    def _take_word(self, word: str) -> bool:
        if self._text.startswith(word, self._at) and self._ends_word(self._at + len(word)):
            self._at += len(word)
            return True
        return False

    def _blanks(self) -> None:
        """Skip blanks, continued lines, and a comment."""
        if (blanks := self._match(_BLANKS, self._at)) is not None:
            self.plain = self.plain and "\n" not in blanks.group()
            self._at = blanks.end()
        if self._peek() == "#":
            self.plain = False
            until = self._text.find("\n", self._at)
            until = self._end if until < 0 else until
            self._budget.spend(until - self._at)
            self._at = until
        self._budget.spend(1)

    def _space(self) -> None:
        """Skip blanks, comments and line ends."""
        self._blanks()
        while self._peek() == "\n":
            self._newline()
            self._blanks()


def _without_expansions(parts: Iterable[str]) -> str:
    """Return the text of a word without what the shell replaces. A brace expansion is its elements."""
    text = "".join(
        _ESCAPE.sub(_unescaped, part) if isinstance(part, _Escaped) else "" if isinstance(part, _Expansion) else part
        for part in parts
    )
    return text.translate(_BRACES) if "{" in text else text


def _unescaped(found: re.Match[str]) -> str:
    code = int(found[1] or found[2], 16) if found[1] or found[2] else int(found[3], 8) if found[3] else 0
    return chr(code) if 0 < code <= sys.maxunicode else {"n": "\n", "t": "\t"}.get(found[4] or "", found[4] or "")


_READ_IN_WORD = {
    "<": Reader._read_process,
    ">": Reader._read_process,
    "(": Reader._read_parenthesis,
    "\\": Reader._read_escape,
    "'": Reader._read_single_quotes,
    '"': Reader._read_double_quotes,
    "$": Reader._read_dollar,
    "`": Reader._read_backquotes,
    **dict.fromkeys("*?[{", Reader._read_pattern),
}

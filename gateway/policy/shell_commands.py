"""Parses a shell command line into its commands, for policy rules. Pure functions; nothing is run.

The result serves two purposes. To *allow* a line, it must be plain: words and operators between commands, without expansions,
substitutions and redirections. To *deny* a command, it is searched everywhere in the line, and in lines that are passed to
another shell. The grammar is bash's (tree-sitter-bash). A line that it cannot parse is neither plain nor known.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_LENGTH = 100_000
"""Characters. A longer line is not parsed, and is neither plain nor known."""
_MAX_DEPTH = 4
_PLAIN = frozenset(
    {
        "program", "list", "pipeline", "command", "command_name", "word", "number", "string", "string_content", "raw_string",
        "concatenation", "redirected_statement", "file_redirect", "file_descriptor",
    }
)  # fmt: skip
_OPERATORS = frozenset({"&&", "||", ";", "|", "|&", "&", "\n", '"', ">&", ">", ">>", "&>", "&>>"})
_HARMLESS = re.compile(r"[12]?>&[12]|(?:[12]?>>?|&>>?)\s*/dev/null")
_COMMANDS = frozenset({"command", "declaration_command", "unset_command", "test_command"})
_UNREADABLE = re.compile(r"[^\S \t\n]|[\x00-\x08\x0e-\x1f\x7f]")

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "eval"})
"""Programs that take a command line as an argument."""
WRAPPERS = frozenset(
    {
        "!", "builtin", "chroot", "command", "coproc", "doas", "env", "exec", "find", "flock", "ionice", "nice", "nohup",
        "parallel", "setsid", "stdbuf", "strace", "sudo", "taskset", "time", "timeout", "unshare", "watch", "xargs",
    }
)  # fmt: skip
"""Programs that run a command given in their arguments."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command. `text` is its words without quotes, `forms` are the texts that `ask` and `deny` rules are compared to."""

    text: str
    forms: frozenset[str]


@dataclass(frozen=True, slots=True)
class ShellLine:
    """A parsed line. `plain`: it does nothing but run its commands. `known`: it names every command that it runs."""

    text: str
    commands: tuple[ShellCommand, ...]
    plain: bool
    known: bool


def parse(text: str) -> ShellLine:
    """Parse a command line."""
    if len(text) > MAX_LENGTH:
        return ShellLine(text, (), plain=False, known=False)
    found = _Found()
    # Near a backslash, the grammar does not take every line end as the end of a command.
    for reading in {text, text.replace("\\\n", ""), re.sub(r"\n[ \t]*\\", "\n", text)}:
        found.read(reading, 0)
    odd = _UNREADABLE.search(text) is not None
    plain = found.plain and "\\\n" not in text and not odd
    return ShellLine(text, tuple(found.commands), plain=plain, known=found.known and not odd)


@dataclass(slots=True)
class _Found:
    """The commands of a line and of the lines nested in it."""

    commands: list[ShellCommand] = field(default_factory=list)
    plain: bool = True
    known: bool = True

    def read(self, text: str, depth: int) -> None:
        root = _parser().parse(text.encode("utf-8", "replace")).root_node
        if root.has_error or depth > _MAX_DEPTH:
            self.plain = self.known = False
        for node in _nodes(root):
            self.plain = self.plain and _is_plain(node)
            if node.type in _COMMANDS:
                self._take(node, depth)
        if root.has_error:
            # A shell may accept what the grammar does not: the text between two operators may be a command.
            self.commands += [_command(piece.split()) for piece in re.split(r"[;&|\n(){}`]|\$\(", text) if piece.strip()]

    def _take(self, node: Node, depth: int) -> None:
        first, *others = _lines(node)
        self._take_words(node, [*first, *_words_behind_redirects(node)], depth)
        for parts in others:
            self._take_words(node, parts, depth)

    def _take_words(self, node: Node, parts: list[Node], depth: int) -> None:
        words = [_literal(part) for part in parts]
        if not words:
            return
        self.commands.append(_command(words, _text(node)))
        # A quoted 'git status' is one word, but its text is that of git with an argument.
        self.plain = self.plain and not re.search(r"\s", words[0])
        # `$X -rf` runs a command that the line does not name.
        self.known = self.known and not (node.type == "command" and _is_dynamic(parts[0]))
        for n, word in enumerate(words):
            name = posixpath.basename(word)
            if name in SHELLS and (n == 0 or any(posixpath.basename(w) in WRAPPERS for w in words[:n])):
                self._take_inner(name, parts[n + 1 :], words[n + 1 :], depth)

    def _take_inner(self, name: str, parts: list[Node], words: list[str], depth: int) -> None:
        """Parse what a shell runs: a line in its arguments. Script files are not read; without either, it reads its input."""
        lines = [n for n, word in enumerate(words) if re.fullmatch(r"-\w*c\w*", word)]
        if name != "eval" and not lines:
            self.known = self.known and any(not word.startswith("-") for word in words)
            return
        self.plain = False
        self.known = self.known and not any(_is_dynamic(part) for part in parts)
        for line in [" ".join(words)] if name == "eval" else words[lines[0] + 1 :]:
            self.read(line, depth + 1)


_NOT_WORDS = frozenset({"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment"})


def _lines(command: Node) -> list[list[Node]]:
    """Return the words of each line: the grammar parses `2>&12>&1 #\\nbad` as one command with a comment, a shell as two."""
    lines: list[list[Node]] = [[]]
    source, start, end = command.text or b"", command.start_byte, command.start_byte
    for child in command.named_children:
        if b"\n" in source[end - start : child.start_byte - start]:
            lines.append([])
        end = child.end_byte
        if child.type not in _NOT_WORDS:
            lines[-1].append(child)
    return lines


def _words_behind_redirects(command: Node) -> list[Node]:
    """Return words that the grammar takes for files of a redirection, such as c in `a < b c`."""
    redirects = list(command.named_children)
    if command.parent is not None and command.parent.type == "redirected_statement":
        redirects += command.parent.named_children
    words: list[Node] = []
    for redirect in redirects:
        if redirect.type in ("file_redirect", "herestring_redirect"):
            words += [child for child in redirect.named_children if child.type != "file_descriptor"][1:]
        elif redirect.type == "heredoc_redirect":
            words += redirect.children_by_field_name("argument")
    return words


def _command(words: list[str], source: str = "") -> ShellCommand:
    text = " ".join(words)
    forms = {text, source} if source else {text}
    for n in range(len(words)):
        forms.add(" ".join([posixpath.basename(words[n]), *words[n + 1 :]]))
        if not any(posixpath.basename(word) in WRAPPERS for word in words[: n + 1]):
            break
    return ShellCommand(text, frozenset(forms))


def _is_plain(node: Node) -> bool:
    if node.type == "file_redirect":
        return _HARMLESS.fullmatch(_text(node)) is not None
    if node.type == "redirected_statement" and node.child_by_field_name("body") is None:
        return False
    if node.type in ("command", "redirected_statement") and not _has_only_blanks(node):
        return False
    if node.type == "word" and re.search(r"\s", _text(node).replace("\\ ", "")):
        return False
    return node.type in _PLAIN if node.is_named else node.type in _OPERATORS


def _has_only_blanks(node: Node) -> bool:
    """Whether only blanks are between its parts: anything else could end a command."""
    between = zip(node.children, node.children[1:], strict=False)
    source, start = node.text or b"", node.start_byte
    return all(not source[a.end_byte - start : b.start_byte - start].strip(b" \t") for a, b in between)


def _is_dynamic(node: Node) -> bool:
    """Whether the shell changes the word, by an expansion, a substitution or an escape."""
    inner = list(_nodes(node))
    return any(found.type.endswith(("expansion", "substitution")) for found in inner) or any(
        found.type in ("word", "ansi_c_string") and re.search(r"[*?\[{]|^\$'.*\\", _text(found)) for found in inner
    )


def _literal(node: Node) -> str:
    """Return the word without quotes and escapes; expansions stay as they are written."""
    if node.type in ("raw_string", "ansi_c_string"):
        return _text(node).removeprefix("$")[1:-1]
    if node.type == "string":
        return re.sub(r'\\([\\"$`\n])', r"\1", _text(node)[1:-1])
    if node.type in ("command_name", "concatenation") and node.children:
        return "".join(_literal(child) for child in node.children)
    return re.sub(r"\\(.)", r"\1", _text(node), flags=re.DOTALL)


def _nodes(root: Node) -> Iterator[Node]:
    todo = [root]
    while todo:
        node = todo.pop()
        yield node
        todo += reversed(node.children)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


@lru_cache(maxsize=1)
def _parser() -> Parser:
    # Imported at first use: a gateway without such rules does not need it.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))

"""A command line of a shell, taken apart into its commands, for rules about them. Pure; nothing is run.

Two readings, each careful in its own direction. What is to be *allowed* must be plain: words and the operators between commands,
nothing that expands, substitutes or redirects. What is to be *refused* is looked for everywhere in the line, and in what the line
hands to another shell. The grammar is bash's (tree-sitter-bash); what it cannot read is neither plain nor known.
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

LONGEST = 100_000
"""Characters of a line that are read; a longer one is not known."""
_DEEPEST = 4
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
"""Programs that take a line as an argument."""
WRAPPERS = frozenset(
    {
        "!", "builtin", "chroot", "command", "coproc", "doas", "env", "exec", "find", "flock", "ionice", "nice", "nohup",
        "parallel", "setsid", "stdbuf", "strace", "sudo", "taskset", "time", "timeout", "unshare", "watch", "xargs",
    }
)  # fmt: skip
"""Programs that run what stands among their arguments."""


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command: its words without their quotes, joined; and every form of it that a refusal is compared with."""

    text: str
    forms: frozenset[str]


@dataclass(frozen=True, slots=True)
class ShellLine:
    """`plain`: its commands are all that it does. `known`: the name of everything that it runs stands in it."""

    text: str
    commands: tuple[ShellCommand, ...]
    plain: bool
    known: bool


def parse(text: str) -> ShellLine:
    """Take a line apart."""
    if len(text) > LONGEST:
        return ShellLine(text, (), plain=False, known=False)
    found = _Found()
    # Around a backslash, the grammar does not see every end of a line as that of a command.
    for reading in {text, text.replace("\\\n", ""), re.sub(r"\n[ \t]*\\", "\n", text)}:
        found.read(reading, 0)
    odd = _UNREADABLE.search(text) is not None
    plain = found.plain and "\\\n" not in text and not odd
    return ShellLine(text, tuple(found.commands), plain=plain, known=found.known and not odd)


@dataclass(slots=True)
class _Found:
    """What was found in a line, and in the lines within it."""

    commands: list[ShellCommand] = field(default_factory=list)
    plain: bool = True
    known: bool = True

    def read(self, text: str, depth: int) -> None:
        root = _parser().parse(text.encode("utf-8", "replace")).root_node
        if root.has_error or depth > _DEEPEST:
            self.plain = self.known = False
        for node in _nodes(root):
            self.plain = self.plain and _is_plain(node)
            if node.type in _COMMANDS:
                self._take(node, depth)
        if root.has_error:
            # What a grammar cannot read, a shell may: whatever stands between two operators may be a command.
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
        # Joined, 'git status' in quotes would be no other than git with an argument.
        self.plain = self.plain and not re.search(r"\s", words[0])
        # `$X -rf` runs something, and the line does not say what.
        self.known = self.known and not (node.type == "command" and _is_veiled(parts[0]))
        for n, word in enumerate(words):
            name = posixpath.basename(word)
            if name in SHELLS and (n == 0 or any(posixpath.basename(w) in WRAPPERS for w in words[:n])):
                self._take_inner(name, parts[n + 1 :], words[n + 1 :], depth)

    def _take_inner(self, name: str, parts: list[Node], words: list[str], depth: int) -> None:
        """What a shell is given: a line, a file (which is not looked into), or what comes to its input."""
        lines = [n for n, word in enumerate(words) if re.fullmatch(r"-\w*c\w*", word)]
        if name != "eval" and not lines:
            self.known = self.known and any(not word.startswith("-") for word in words)
            return
        self.plain = False
        self.known = self.known and not any(_is_veiled(part) for part in parts)
        for line in [" ".join(words)] if name == "eval" else words[lines[0] + 1 :]:
            self.read(line, depth + 1)


_NOT_WORDS = frozenset({"variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect", "comment"})


def _lines(command: Node) -> list[list[Node]]:
    """Its words; `2>&12>&1 #\\nbad` is to the grammar one command with a comment in it, and to a shell two."""
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
    """`a < b c`: the grammar takes the command's word c for one more file."""
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
    """Whether nothing stands between its parts that could end a command."""
    between = zip(node.children, node.children[1:], strict=False)
    source, start = node.text or b"", node.start_byte
    return all(not source[a.end_byte - start : b.start_byte - start].strip(b" \t") for a, b in between)


def _is_veiled(node: Node) -> bool:
    """Whether a word is another than it reads: by what it expands, or by an escape."""
    inner = list(_nodes(node))
    return any(found.type.endswith(("expansion", "substitution")) for found in inner) or any(
        found.type in ("word", "ansi_c_string") and re.search(r"[*?\[{]|^\$'.*\\", _text(found)) for found in inner
    )


def _literal(node: Node) -> str:
    """A word as the shell would pass it on, with what it would expand left as it is written."""
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
    # Not at the top: a gateway without such rules starts without it.
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))

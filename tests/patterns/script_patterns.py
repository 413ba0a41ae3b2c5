"""The regular expressions of the console's own scripts, in the syntax of Python, whose engine backtracks as a browser's does."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.patterns.python_patterns import ROOT, Found

SCRIPTS = "gateway/console/static/js"
_TOKEN = re.compile(
    r"""(?P<skipped>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\w$]+)
    |(?P<sign>.)""",
    re.DOTALL | re.VERBOSE,
)
_LITERAL = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
_BEFORE_VALUE = frozenset({"return", "typeof", "case", "in", "of", "await", "yield", "else"})
"""Words behind which a slash begins a regular expression. Behind other words, texts and closing brackets it divides."""
_CALL = re.compile(r"\.(?:replace|replaceAll|split|search|match|matchAll)\((?=/)|(?<=/)[a-z]*\.(?:test|exec)\(")
_IN_PYTHON = (
    (r"\p{L}\p{N}", r"^\W_"), (r"\/", "/"), ("(?<", "(?P<"), ("(?P<=", "(?<="), ("(?P<!", "(?<!"),
    ("[^]", r"[\s\S]"),
    # Some characters of each property: how many there are has no effect on the time.
    (r"\p{Cc}", r"\x00-\x1f\x7f-\x9f"), (r"\p{Cf}", r"\xad\u200b-\u200f"), (r"\p{Cs}", r"\ud800-\udfff"),
    (r"\p{Z}", r" \xa0\u2000-\u200a\u2028\u2029"), (r"\p{Default_Ignorable_Code_Point}", r"\u034f\u2060-\u206f"),
)  # fmt: skip
_CODE_POINT = re.compile(r"\\u\{([0-9a-f]{5,6})\}")


def script_patterns() -> Iterator[Found]:
    """Yield each regular expression."""
    for file, script in scripts():
        for start, literal in literals(script):
            body, _, flags = literal[1:].rpartition("/")
            use = "finditer" if "g" in flags or script[:start].endswith(".split(") else "search"
            yield Found(file, literal, re.compile(_in_python(body), _flags(flags)), frozenset({use}))


def scripts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each script."""
    for path in sorted((ROOT / SCRIPTS).rglob("*.js")):
        yield str(path.relative_to(ROOT)), path.read_text()


def overlooked(script: str) -> list[str]:
    """Return what a script does with regular expressions that `literals` does not find."""
    found = list(literals(script))
    edges = {start for start, _ in found} | {start + literal.rindex("/") + 1 for start, literal in found}
    calls = [match for match in _CALL.finditer(script) if not {match.start(), match.end()} & edges]
    return [script[match.start() - 40 : match.end() + 40] for match in (*calls, *re.finditer(r"\bRegExp\b", script))]


def literals(script: str) -> Iterator[tuple[int, str]]:
    """Yield the regular expressions of a script, with their positions."""
    at, before_value, inside = 0, True, list[str]()
    while at < len(script):
        if inside and inside[-1] == "`":
            at, before_value = _part_of_template(script, at, inside)
            continue
        if before_value and script[at] == "/" and script[at + 1] not in "/*":
            found = _LITERAL.match(script, at)
            assert found is not None
            yield at, found.group()
            at, before_value = found.end(), False
            continue
        token = _TOKEN.match(script, at)
        assert token is not None
        at = token.end()
        if token["sign"] is not None:
            before_value = _sign(token["sign"], inside)
        elif token["text"] is not None:
            before_value = token["text"] in _BEFORE_VALUE


def _part_of_template(script: str, at: int, inside: list[str]) -> tuple[int, bool]:
    """Read a template until an expression in it, or its end; returns the position, and whether a value may follow."""
    while script[at] != "`" and not script.startswith("${", at):
        at += 2 if script[at] == "\\" else 1
    if script[at] == "`":
        inside.pop()
        return at + 1, False
    inside.append("{")
    return at + 2, True


def _sign(sign: str, inside: list[str]) -> bool:
    """Enter or leave a block or a template; returns whether a value may follow."""
    if sign in "`{":
        inside.append(sign)
    elif sign == "}":
        inside.pop()
    return sign not in ")]"


def _in_python(body: str) -> str:
    for script, python in _IN_PYTHON:
        body = body.replace(script, python)
    return _CODE_POINT.sub(lambda found: f"\\U{found[1]:0>8}", body)


def _flags(flags: str) -> int:
    return sum(flag for name, flag in (("i", re.IGNORECASE), ("m", re.MULTILINE), ("s", re.DOTALL)) if name in flags)

"""No control character of a client, an agent or a file reaches a log or a terminal."""

from __future__ import annotations

import ast
import json
import logging
import re
import sys
from pathlib import Path

import pytest

from gateway.cli.output import command_error, escape_warnings, say
from gateway.observability.logs import JsonFormatter, TextFormatter, bind_session_id
from gateway.security.redaction import Redactor
from gateway.terminal_text import json_text, lines, one_line
from tests.support.portico_command import PorticoCommand

ROOT = Path(__file__).parents[2]
CONTROLS = "".join(
    map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200B, 0x200E, 0x2028, 0x202E, 0x2066, 0xFEFF, 0xE0000, 0xE0041, 0xE007F))
)
HOSTILE = f"a{CONTROLS}\x1b]52;c;Y3VybCBldmlsfHNo\x07\x1b[8mé"
RAW = re.compile(f"[{re.escape(CONTROLS.replace(chr(10), ''))}]")


def record(message: str, *args: object, raised: bool = False) -> logging.LogRecord:
    made = logging.LogRecord("gateway.x", logging.WARNING, __file__, 1, message, args, None)
    if raised:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            made.exc_info = sys.exc_info()
    return made


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
async def test_records_of_the_log_have_no_control_characters(
    formatter: type[TextFormatter | JsonFormatter], raised: bool
) -> None:
    bind_session_id(f"sess_{HOSTILE}")
    made = record(f"of %s: {HOSTILE}", HOSTILE, raised=raised)
    made.fields = {"given": HOSTILE}
    written = formatter(Redactor()).format(made)
    assert not RAW.search(written)
    # Only a traceback has lines of its own, which are indented.
    assert all(line.startswith("    ") for line in written.split("\n")[1:]) and ("\n" in written) <= raised
    assert "é" in written or json.loads(written)["message"].endswith("é")


def test_a_secret_with_a_line_break_is_redacted() -> None:
    redactor = Redactor()
    redactor.register(["-----BEGIN KEY-----\nabcdef\n"])
    made = record("the key %s", "-----BEGIN KEY-----\nabcdef\n")
    assert "abcdef" not in TextFormatter(redactor).format(made) + JsonFormatter(redactor).format(made)


def test_texts_keep_what_they_say() -> None:
    assert lines("a\tb\r\nc\x1b[8m") == "a\tb\r\nc\\x1b[8m" and one_line("a\nb") == "a\\nb"
    assert json.loads(json_text(json.dumps({"a": HOSTILE}, ensure_ascii=False))) == {"a": HOSTILE}


def test_what_commands_print_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    say(HOSTILE, err=True)
    command_error(HOSTILE).show()
    before = logging.lastResort.formatter if logging.lastResort is not None else None
    try:
        escape_warnings()
        assert logging.lastResort is not None
        logging.lastResort.handle(record(HOSTILE, raised=True))
    finally:
        assert logging.lastResort is not None
        logging.lastResort.setFormatter(before)
    printed = capsys.readouterr()
    assert not RAW.search(printed.out.replace("\t", "")) and not RAW.search(printed.err.replace("\t", ""))
    assert "\\x1b[8m" in printed.out and printed.err.count("\\x1b[8m") == 4


async def test_the_error_of_a_configuration_has_none(tmp_path: Path) -> None:
    file = tmp_path / "a\x1b[8m.toml"
    file.write_text('[server]\n"b\\u001b]52;c;x" = 1\n')
    code, out, err = await PorticoCommand(tmp_path, "audit", "--config", str(file), own=True).run()
    assert code == 1 and out == "" and "\x1b" not in err and "\\x1b[8m" in err and "\\x1b]52;c;x" in err


def test_commands_print_in_one_way() -> None:
    """`say` is for all of them but what `portico run` streams, which has its own escapes, and what is not for people."""
    allowed = {"gateway/cli/output.py", "gateway/cli/terminal_turn.py"}
    found = []
    for path in sorted((ROOT / "gateway" / "cli").glob("*.py")):
        file = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())) if file not in allowed else ():
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("print", "sys.stdout.write", "sys.stderr.write", "click.ClickException") or name.startswith(
                ("click.echo", "click.secho")
            ):
                found.append(f"{file}:{getattr(node, 'lineno', 0)}: {name}")
    assert found == []

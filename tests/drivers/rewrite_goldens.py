"""Writes the golden events of every transcript again, and the events of the conversations and dialogues; review the
diff before it is committed.

python -m tests.drivers.rewrite_goldens
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.drivers import dialogues
from tests.drivers.claude import recordings as claude
from tests.drivers.claude.test_tools_golden import HERE, replay, wire
from tests.drivers.codex import recordings as codex
from tests.drivers.gemini import recordings as gemini
from tests.transcripts.record_claude_tools import WIRES


def main() -> None:
    """Rewrite the files and print the names of those that changed."""
    rewrite(claude.GOLDEN, {found.name: claude.golden_lines(found) for found in claude.ALL})
    rewrite(codex.GOLDEN, {found.name: codex.golden_lines(found) for found in codex.ALL})
    rewrite(gemini.GOLDEN, {found.name: gemini.golden_lines(found) for found in gemini.ALL})
    for name in WIRES:
        write(HERE / f"{name}.wire.jsonl", "".join(json.dumps(record) + "\n" for record in replay(wire(name))[1]))
    for path in dialogues.PATHS:
        write(path, dialogues.text_of(dialogues.replay(path.parent.name, dialogues.read(path))))


def write(path: Path, text: str) -> None:
    """Make the file have this text."""
    if path.read_text() != text:
        path.write_text(text)
        sys.stdout.write(f"wrote {path.name}\n")


def rewrite(folder: Path, events: dict[str, bytes]) -> None:
    """Make the folder hold exactly these events."""
    folder.mkdir(parents=True, exist_ok=True)
    expected = {folder / f"{name}.events.jsonl": lines for name, lines in events.items()}
    for path in sorted(folder.glob("*.events.jsonl")):
        if path not in expected:
            path.unlink()
            sys.stdout.write(f"removed {path.name}\n")
    for path, lines in expected.items():
        if not path.exists() or path.read_bytes() != lines:
            path.write_bytes(lines)
            sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()

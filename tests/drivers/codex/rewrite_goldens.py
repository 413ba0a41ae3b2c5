"""Writes the golden events of every codex transcript again; review the diff before it is committed.

python -m tests.drivers.codex.rewrite_goldens
"""

from __future__ import annotations

import sys

from tests.drivers.codex.recordings import ALL, GOLDEN, golden_lines


def main() -> None:
    """Rewrite the files and print the names of those that changed."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    expected = {GOLDEN / f"{transcript.name}.events.jsonl": golden_lines(transcript) for transcript in ALL}
    for path in sorted(GOLDEN.glob("*.events.jsonl")):
        if path not in expected:
            path.unlink()
            sys.stdout.write(f"removed {path.name}\n")
    for path, lines in expected.items():
        if not path.exists() or path.read_bytes() != lines:
            path.write_bytes(lines)
            sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main()

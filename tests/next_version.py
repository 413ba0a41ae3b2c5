"""Source trees of later versions of the project, which change the tables of the store: for tests of upgrades.

The first adds a column to `events` and stores its own version in each row. The second removes that column again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gateway.store import schema

ROOT = Path(__file__).parents[1]
NEXT = schema.VERSION + 1
"""The version of a program that the programs of today can run beside: it adds a column."""
LAST = NEXT + 1
"""The version of one that no earlier program can run beside."""
COLUMN = "stored_by"


def make_next(folder: Path) -> Path:
    """Make the source tree of version NEXT, and return its folder."""
    source = _copy(folder, NEXT)
    column = f'    Column("last", BigInteger, nullable=False),\n    Column("{COLUMN}", Integer),\n'
    _replace(source / "gateway/store/schema.py", '    Column("last", BigInteger, nullable=False),\n', column)
    events = source / "gateway/store/events.py"
    _replace(events, '"first", "last", "body")\n', f'"first", "last", "body", "{COLUMN}")\n')
    _replace(events, '"body": row.body})', f'"body": row.body, "{COLUMN}": {NEXT}}})')
    _add_steps(source, f'    {NEXT}: Step(lambda op: _add_column(op, "events", Column("{COLUMN}", Integer)), 10),\n')
    return source


def make_last(folder: Path) -> Path:
    """Make the source tree of version LAST, and return its folder."""
    source = _copy(folder, LAST)
    _add_steps(
        source,
        f'    {NEXT}: Step(lambda op: _add_column(op, "events", Column("{COLUMN}", Integer)), 10),\n'
        f'    {LAST}: Step(lambda op: op.drop_column("events", "{COLUMN}"), {LAST}),\n',
    )
    return source


def _copy(folder: Path, version: int) -> Path:
    for package in ("gateway", "drivers"):
        # The console takes half of the time, and is not used.
        ignored = shutil.ignore_patterns("__pycache__", "fonts")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    _replace(folder / "gateway/store/schema.py", f"VERSION = {schema.VERSION}\n", f"VERSION = {version}\n")
    _replace(folder / "gateway/__init__.py", '__version__ = "', f'__version__ = "{version}.')
    return folder


def _add_steps(source: Path, steps: str) -> None:
    _replace(source / "gateway/store/migrations.py", '}\n"""By version."""', f'{steps}}}\n"""By version."""')


def _replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    if text.count(before) != 1:
        raise AssertionError(f"{path}: {before!r} is {text.count(before)} times in it")
    path.write_text(text.replace(before, after))

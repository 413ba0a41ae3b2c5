"""No access to a file is without its reason: where an agent may write, drivers and the gateway go through confined_files."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.file_accesses.found_accesses import accesses, accesses_in
from tests.file_accesses.reasons import REASONS


def listed() -> dict[str, Counter[str]]:
    """Return the accesses that have a reason, by module."""
    found = dict[str, Counter[str]]()
    for modules in REASONS.values():
        for module, text in modules.items():
            assert module not in found, f"{module} has two reasons"
            words = (word.partition("*") for word in text.split())
            found[module] = Counter({name: int(times or 1) for name, _, times in words})
    return found


def test_every_access_has_a_reason() -> None:
    reasons, found = listed(), accesses()
    changed = {
        module: " ".join(f"{name}*{times}" if times > 1 else name for name, times in sorted(found.get(module, Counter()).items()))
        for module in sorted({*reasons, *found})
        if reasons.get(module) != found.get(module)
    }
    assert changed == {}, (
        "these modules access files in another way than tests/file_accesses/reasons.py lists. Where an agent may write (its "
        "home, working folder, worktree, state), use drivers/runtime/confined_files.py; otherwise list the access with its reason"
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("open('x')", ["open"]),
        ("import os\nos.open('x', 0); os.path.exists('x'); os.getpid()", ["os.open"]),
        ("import os as system\nsystem.unlink('x')", ["os.unlink"]),
        ("from shutil import rmtree as gone\ngone('x')", ["rmtree"]),
        ("import asyncio, shutil\nasyncio.to_thread(shutil.rmtree, 'x')", ["shutil.rmtree"]),
        ("path.write_text('x'); path.open('wb'); path.open(); (a / b).rename(c)", ["write_text", "open", "rename"]),
        ("path.unlink(missing_ok=True); map(Path.rmdir, paths)", ["unlink", "rmdir"]),
        ("gateway.open(record); text.replace('a', 'b'); replace(spec, cwd=folder); folders.open(path, os.O_RDONLY)", []),
    ],
)
def test_accesses_are_found(source: str, names: list[str]) -> None:
    assert sorted(accesses_in(source)) == sorted(names)

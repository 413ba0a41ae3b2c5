"""Runs `portico doctor --json`, for tests of its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.gateway.portico_command import PorticoCommand


class Report(dict[str, Any]):
    """The JSON of a report, with its exit code."""

    code: int

    def check(self, name: str) -> dict[str, Any]:
        [found] = [check for check in [*self["checks"], *(a["check"] for a in self["agents"])] if check["name"] == name]
        return found

    def problem(self, name: str, *words: str) -> str:
        """The command for the only problem, which is this one."""
        assert [c["name"] for c in self["checks"] if c["status"] == "problem"] == [name], self
        assert (self.code, self["problems"]) == (1, 1)
        found = self.check(name)
        assert all(word in found["text"] for word in words), found
        return str(found["command"])

    @property
    def is_well(self) -> bool:
        return (self.code, self["problems"]) == (0, 0)


async def doctor(folder: Path, *arguments: str, env: dict[str, str] | None = None, config: bool = True) -> Report:
    configured = folder / "config.toml"
    if not config or (configured.is_file() and "port = " not in configured.read_text()):
        # The usual port may be in use by a daemon that belongs to no test.
        arguments = ("--port", "0", *arguments)
    code, out, err = await PorticoCommand(folder, "doctor", "--json", *arguments, env=env, config=config).run()
    assert err == ""
    report = Report(json.loads(out))
    report.code = code
    return report

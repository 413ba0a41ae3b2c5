"""The files that docs/testing-your-ui.md shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

PAGE = (Path(__file__).parents[3] / "docs" / "testing-your-ui.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
"""The texts by the paths in a user's project."""


def write_files(project: Path) -> Path:
    """Write a project with the files of the page."""
    for name, text in FILES.items():
        (project / name).parent.mkdir(exist_ok=True, parents=True)
        (project / name).write_text(text)
    return project


def job_of(workflow: str) -> dict[str, Any]:
    """Return the only job of a workflow."""
    [job] = yaml.safe_load(FILES[workflow])["jobs"].values()
    return dict(job)

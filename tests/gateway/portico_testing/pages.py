"""The files that docs/testing-your-ui.md shows."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "testing-your-ui.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
"""The texts by the paths in a user's project."""

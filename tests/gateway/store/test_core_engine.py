"""What a start imports of SQLAlchemy, and what is left for whoever wants the rest."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import gateway.server.daemon
print(any(name.startswith("sqlalchemy.orm") for name in sys.modules))
import sqlalchemy.ext.asyncio as whole
from gateway.store.core_engine import AsyncEngine
print(whole.AsyncEngine is AsyncEngine, hasattr(whole, "AsyncSession"))
"""


def test_a_start_imports_no_orm_and_breaks_nobodys() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "True", "True"]

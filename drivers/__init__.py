"""The API for driver authors: a driver imports from here, its tests from `drivers.testing`. See docs/writing-a-driver.md.

The names are those of `drivers.api`, which is imported on first use of one of them: a command that needs one module of the
package does not import the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drivers.api import *  # noqa: F403 - the names are listed there
    from drivers.api import __all__ as __all__


def __dir__() -> list[str]:
    return [*globals(), *import_module("drivers.api").__all__]


def __getattr__(name: str) -> Any:
    api = import_module("drivers.api")
    if name != "__all__" and name not in api.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(api, name)

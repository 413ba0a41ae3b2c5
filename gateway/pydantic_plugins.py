"""Keeps pydantic from looking for plugins in the metadata of all installed packages, when it builds the first model.

That takes 10 to 30 ms of each start, and the gateway uses none. The variable PYDANTIC_DISABLE_PLUGINS does the same, but agents
would inherit it. It depends on undocumented parts of pydantic, checked by tests/gateway/test_imports.py: `_plugins` of
`pydantic.plugin._loader` has the plugins that were found, None before the first search.
"""

from __future__ import annotations

from pydantic.plugin import _loader


def disable_pydantic_plugins() -> None:
    """Call it before the first model is built."""
    if _loader._plugins is None:
        _loader._plugins = {}

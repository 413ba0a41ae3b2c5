"""How Portico was installed into this environment, and the shell commands that change the installation."""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

NAME = "portico-gateway"
"""The name of the distribution. Its command is `portico`."""
FORMER_NAME = "portico"
"""The name of the distribution before its first release. On the package index it belongs to another project."""
EXTRAS = {"postgresql": "psycopg[binary]>=3.2,<4", "nodes": "aiohttp>=3.14,<4"}
"""The packages that errors ask for, by the extras that require them in pyproject.toml."""
SOURCE = Path(__file__).parents[1]
"""The project's folder, if Portico runs from its source."""
_UV_RECEIPT, _PIPX_METADATA = "uv-receipt.toml", "pipx_metadata.json"
"""Files that `uv tool` and pipx write into each environment they make."""


class _Requirement(NamedTuple):
    """Argument of an installer. `path` is the file or folder that it names, None for an address or a name."""

    text: str
    path: Path | None
    editable: bool = False


def command_for_extra(extra: str) -> str:
    """Return the shell command that adds an extra to this installation."""
    prefix = Path(sys.prefix)
    origin = _requirement(NAME).path
    if (prefix / _UV_RECEIPT).exists() and (origin is None or origin.exists()):
        # `uv tool upgrade` removes what the tool does not require.
        return shlex.join(["uv", "tool", "install", *_tool_requirements(prefix, [extra])])
    if (prefix / _PIPX_METADATA).exists():
        return shlex.join(["pipx", "inject", prefix.name, EXTRAS[extra]])
    return shlex.join([*_pip("install"), EXTRAS[extra]])


def install_command() -> str:
    """Return the shell command that installs Portico from where this installation came."""
    prefix = Path(sys.prefix)
    if (prefix / _UV_RECEIPT).exists():
        return shlex.join(["uv", "tool", "install", *_tool_requirements(prefix)])
    installer = ["pipx", "install"] if (prefix / _PIPX_METADATA).exists() else _pip("install")
    return shlex.join([*installer, *_arguments(_requirement(NAME))])


def command_without_former_name() -> str | None:
    """Return the shell command that replaces this project's distribution `portico`; None if it is not installed here."""
    found = _installed(FORMER_NAME)
    # The other project of this name has no drivers.
    if found is None or not found.entry_points.select(group="portico.drivers"):
        return None
    prefix = Path(sys.prefix)
    if (prefix / _UV_RECEIPT).exists():
        uninstall = ["uv", "tool", "uninstall", prefix.name]
    elif (prefix / _PIPX_METADATA).exists():
        uninstall = ["pipx", "uninstall", prefix.name]
    else:
        # Both: files of the same paths are removed with the first.
        uninstall = [*_pip("uninstall"), FORMER_NAME, NAME]
    return f"{shlex.join(uninstall)} && {install_command()}"


def _pip(action: str) -> list[str]:
    if find_spec("pip") is None:
        return ["uv", "pip", action, "--python", sys.executable]
    return [sys.executable, "-m", "pip", action, *(["--yes"] if action == "uninstall" else [])]


def _installed(name: str) -> Distribution | None:
    # The metadata that a build leaves in a source folder has no RECORD.
    return next((found for found in distributions(name=name) if found.read_text("RECORD") is not None), None)


def _requirement(name: str, extras: Iterable[str] = (), specifier: str = "") -> _Requirement:
    """Return what installs a distribution from where it came (PEP 610). `specifier` is its version on a package index."""
    listed = f"[{','.join(sorted(extras))}]" if extras else ""
    found = _installed(name)
    if found is None and name == NAME:
        return _Requirement(f"{SOURCE}{listed}", SOURCE, editable=True)
    origin = json.loads((found and found.read_text("direct_url.json")) or "{}")
    url, version_control = origin.get("url"), origin.get("vcs_info")
    if url is None:
        return _Requirement(f"{name}{listed}{specifier}", None)
    if version_control is None and urlsplit(url).scheme == "file":
        path = unquote(urlsplit(url).path)
        return _Requirement(f"{path}{listed}", Path(path), origin.get("dir_info", {}).get("editable", False))
    if version_control is not None:
        revision = version_control.get("requested_revision")
        url = f"{version_control['vcs']}+{url}" + (f"@{revision}" if revision else "")
    folder = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
    return _Requirement(f"{name}{listed} @ {url}{folder}", None)


def _arguments(requirement: _Requirement) -> list[str]:
    return ["--editable", requirement.text] if requirement.editable else [requirement.text]


def _tool_requirements(prefix: Path, extras: Iterable[str] = ()) -> Iterator[str]:
    """Yield the arguments of `uv tool install` for the environment as it is, with more extras of Portico."""
    receipt = tomllib.loads((prefix / _UV_RECEIPT).read_text())
    for entry in receipt["tool"]["requirements"]:
        kept, specifier = entry.get("extras", []), entry.get("specifier", "")
        if entry["name"] in (NAME, FORMER_NAME):
            yield from _arguments(_requirement(NAME, {*kept, *extras}, specifier))
        else:
            requirement = _requirement(entry["name"], kept, specifier)
            yield from ("--with-editable" if requirement.editable else "--with", requirement.text)

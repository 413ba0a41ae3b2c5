"""Which subjects outside of gateway/cluster know that there may be several nodes: each further one is harder to read."""

from __future__ import annotations

import ast
from pathlib import Path

import gateway

ROOT = Path(gateway.__file__).parent
OWN = {"cluster", "store"}
"""The package itself, and the tables."""
NAMES = {"SessionElsewhere", "NoNode", "NodeAway", "NodeUnknown", "is_node", "agent_elsewhere", "on_node_lost", "FORWARDED_BY"}
NAMES |= {"node_keys", "is_forwarded", "request_is_forwarded", "node", "cluster"}
PLACES = {
    "app.py",
    "cli",
    "config.py",
    "diagnosis",
    "errors.py",
    "protocols/aap",
    "protocols/acp",
    "protocols/authenticated_routes.py",
    "protocols/model_apis",
    "protocols/operations",
    "security",
    "server",
}


def known_by(module: Path) -> set[str]:
    """What of a cluster a module names."""
    found = set[str]()
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.ImportFrom(module=str(imported)) if imported.startswith("gateway.cluster"):
                found.add(imported)
            case ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name in NAMES:
                found.add(name)
            case ast.Name(id=name) if name in NAMES - {"node", "cluster"}:
                found.add(name)
    return found


def place_of(module: Path) -> str:
    parts = module.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] == "protocols" else 1])


def test_few_places_know_of_nodes() -> None:
    modules = [module for module in ROOT.rglob("*.py") if module.relative_to(ROOT).parts[0] not in OWN]
    assert {place_of(module) for module in modules if known_by(module)} == PLACES

"""No file of the project leads to an installation of `portico` from a package index, where it is another project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = r"portico(?![\w./-])"
LEADS_THERE = re.compile(
    # An installer with the name in the same command: on a line of a shell, or as a list of strings.
    rf"\b(?:(?:pip3?|pipx|uv|tool|poetry|pdm|conda)\b[^\n`#|;&]*\b(?:install|add|inject|upgrade|reinstall|run|download|wheel)|uvx)"
    rf"\b[^\n`#|;&]*(?<![\w./$-]){NAME}"
    # The name with an extra or a version, a dependency, a line of requirements, prose.
    rf"|\bportico\[[a-z]|[\"']{NAME} ?(?:[=<>~!]=|[<>@])|(?:dependencies|requires)\b.*[\"']{NAME}[\"']"
    rf"|^{NAME} ?(?:[=<>~!]=|[<>@]|$)|\b[Ii]nstall(?:s|ing)? (?:the |a )?`?{NAME}"
)
SUFFIXES = {"", ".css", ".html", ".js", ".json", ".md", ".mjs", ".py", ".sh", ".svg", ".toml", ".txt", ".yaml", ".yml"}
FOLDERS = (".ci", "benchmarks", "docs", "drivers", "gateway", "tests")


def files() -> list[Path]:
    below = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    found = [path for path in [*ROOT.iterdir(), *below] if path.is_file() and path.suffix in SUFFIXES]
    return [path for path in found if path != Path(__file__) and path.name != ".git"]


def found_in(text: str) -> list[str]:
    lines = (line for line in text.replace("\\\n", " ").splitlines() if "portico" in line)
    return [match[0] for line in lines for match in LEADS_THERE.finditer(line)]


def test_no_file_leads_to_the_other_project() -> None:
    searched = {str(path.relative_to(ROOT)): path.read_text(errors="replace") for path in files()}
    assert searched.keys() >= {"README.md", "CHANGELOG.md", "Makefile", "config.example.toml", "pyproject.toml", ".ci/run"}
    assert searched.keys() >= {"docs/operations.md", "docs/container/Containerfile", "gateway/store/postgresql.py"}
    assert searched.keys() >= {"gateway/console/static/index.html", "gateway/console/static/js/main.js"}
    assert {name: found for name, text in searched.items() if (found := found_in(text))} == {}


@pytest.mark.parametrize(
    "text",
    [
        "pip install portico",
        'pip install -U "portico[nodes]"',
        "install it with `pip install 'portico[postgresql]'`",
        ".venv/bin/python -m pip install --quiet portico==1.0",
        "pip install \\\n  portico",
        "pipx install portico && portico serve",
        "pipx inject portico psycopg",
        "uv tool install --with portico-cat portico",
        "uv tool upgrade portico",
        "uv add portico",
        "uvx portico serve",
        '["uv", "tool", "install", "portico"]',
        'nodes = ["portico[postgresql]"]',
        'dependencies = ["portico"]',
        'dependencies = ["click", "portico>=1"]',
        "click\nportico\n",
        "portico>=0.1\n",
        "install the portico that wrote it",
        "Install `portico` from the index",
    ],
)
def test_what_leads_there_is_found(text: str) -> None:
    assert found_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "uvx portico-gateway",
        'uv tool install "portico-gateway[postgresql]"',
        "uv tool install .   # the command `portico`",
        "pip install /srv/portico",
        "pip install . && portico serve",
        "pipx install dist/portico_gateway-*.whl",
        "uv tool uninstall portico",
        "python -m pip uninstall --yes portico portico-gateway && python -m pip install .",
        "portico serve --config portico.toml",
    ],
)
def test_what_does_not_lead_there_is_not_found(text: str) -> None:
    assert not found_in(text)

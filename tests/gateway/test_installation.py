"""The commands that change an installation, for environments as uv, pipx and pip leave them. tests/real has real ones."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from gateway import installation
from gateway.diagnosis.machine import check_software
from gateway.installation import EXTRAS, SOURCE, command_for_extra, command_without_former_name, install_command
from tests.conftest import write_config
from tests.support.daemon import Daemon, gateway_config

PSYCOPG = "'psycopg[binary]>=3.2,<4'"
GIT = {"url": "https://git.example/portico", "vcs_info": {"vcs": "git", "commit_id": "30452ec"}}
DRIVERS = "[portico.drivers]\necho = drivers.echo:EchoDriver\n"


@dataclass
class Environment:
    """An environment with the given files, in place of that of this process."""

    prefix: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin/python")

    def add(self, file: str, text: str = "") -> None:
        (self.prefix / file).parent.mkdir(parents=True, exist_ok=True)
        (self.prefix / file).write_text(text)

    def install(self, name: str, origin: Mapping[str, Any] | None = None, entry_points: str = "") -> None:
        """Add the metadata of a distribution. `origin` is its direct_url.json; without it, it came from a package index."""
        info = f"site/{name.replace('-', '_')}-1.0.dist-info"
        self.add(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        self.add(f"{info}/RECORD")
        self.add(f"{info}/entry_points.txt", entry_points)
        if origin is not None:
            self.add(f"{info}/direct_url.json", json.dumps(origin))

    def uv_tool(self, *requirements: str) -> None:
        self.add("uv-receipt.toml", f"[tool]\nrequirements = [{', '.join(requirements)}]\n")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    found = Environment(tmp_path / "portico-gateway")
    found.add("site/pip/__init__.py")
    monkeypatch.setattr(sys, "prefix", str(found.prefix))
    monkeypatch.setattr(sys, "executable", found.python)
    monkeypatch.setattr(sys, "path", [str(found.prefix / "site")])
    return found


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "a folder" / "portico_gateway-1.0-py3-none-any.whl"
    path.parent.mkdir()
    path.touch()
    return path


def from_file(path: Path) -> dict[str, Any]:
    return {"url": path.as_uri(), "archive_info": {}}


def from_folder(path: Path, *, editable: bool) -> dict[str, Any]:
    return {"url": path.as_uri(), "dir_info": {"editable": True} if editable else {}}


def test_extras_require_what_the_project_declares() -> None:
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    assert project["name"] == installation.NAME
    assert all(requirement in project["optional-dependencies"][extra] for extra, requirement in EXTRAS.items())


def test_uv_tool_gets_the_wheel_with_the_extra(environment: Environment, wheel: Path) -> None:
    environment.install("portico-gateway", from_file(wheel))
    environment.uv_tool(f'{{ name = "portico-gateway", path = "{wheel}" }}')
    assert command_for_extra("postgresql") == f"uv tool install '{wheel}[postgresql]'"
    assert install_command() == f"uv tool install '{wheel}'"


def test_uv_tool_keeps_other_packages_and_extras(environment: Environment, tmp_path: Path) -> None:
    environment.install("portico-gateway", from_folder(tmp_path, editable=True))
    environment.install("cat", from_folder(tmp_path, editable=True))
    environment.install("dog", {**GIT, "subdirectory": "dog"})
    environment.install("cow")
    cow = '{ name = "cow", extras = ["milk"], specifier = ">=1" }'
    environment.uv_tool('{ name = "portico-gateway", extras = ["dev"] }', '{ name = "cat" }', '{ name = "dog" }', cow)
    assert command_for_extra("postgresql") == (
        f"uv tool install --editable '{tmp_path}[dev,postgresql]' --with-editable {tmp_path} "
        "--with 'dog @ git+https://git.example/portico#subdirectory=dog' --with 'cow[milk]>=1'"
    )


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (GIT, "'portico-gateway[postgresql] @ git+https://git.example/portico'"),
        ({**GIT, "vcs_info": {"vcs": "git", "requested_revision": "v1"}}, "'portico-gateway[postgresql] @ git+https://git.example/portico@v1'"),
        ({"url": "https://files.example/p.whl", "archive_info": {}}, "'portico-gateway[postgresql] @ https://files.example/p.whl'"),
        (None, "'portico-gateway[postgresql]==1.0'"),
    ],
)  # fmt: skip
def test_uv_tool_gets_the_address(environment: Environment, origin: dict[str, Any] | None, requirement: str) -> None:
    environment.install("portico-gateway", origin)
    environment.uv_tool('{ name = "portico-gateway"' + (' , specifier = "==1.0" }' if origin is None else "}"))
    assert command_for_extra("postgresql") == f"uv tool install {requirement}"


def test_uv_tool_whose_wheel_is_gone_gets_the_packages_of_the_extra(environment: Environment, wheel: Path) -> None:
    environment.install("portico-gateway", from_file(wheel))
    environment.uv_tool(f'{{ name = "portico-gateway", path = "{wheel}" }}')
    (environment.prefix / "site/pip/__init__.py").unlink()
    (environment.prefix / "site/pip").rmdir()
    wheel.unlink()
    assert command_for_extra("postgresql") == f"uv pip install --python {environment.python} {PSYCOPG}"


def test_pipx_injects_the_packages_of_the_extra(environment: Environment, wheel: Path) -> None:
    environment.install("portico-gateway", from_file(wheel))
    environment.add("pipx_metadata.json", "{}")
    assert command_for_extra("postgresql") == f"pipx inject portico-gateway {PSYCOPG}"
    assert install_command() == f"pipx install '{wheel}'"


def test_pip_installs_the_packages_of_the_extra(environment: Environment, wheel: Path) -> None:
    environment.install("portico-gateway", from_file(wheel))
    assert command_for_extra("postgresql") == f"{environment.python} -m pip install {PSYCOPG}"


def test_a_source_that_nothing_has_installed_is_installed_as_it_is(environment: Environment) -> None:
    # A build leaves this in the folder of the project.
    environment.add("site/portico_gateway.egg-info/PKG-INFO", "Metadata-Version: 2.1\nName: portico-gateway\nVersion: 1.0\n")
    assert command_for_extra("postgresql") == f"{environment.python} -m pip install {PSYCOPG}"
    assert install_command() == f"{environment.python} -m pip install --editable {quote(str(SOURCE))}"


def test_another_project_of_the_former_name_is_left_alone(environment: Environment) -> None:
    environment.install("portico", entry_points="[console_scripts]\nportico = portico:main\n")
    environment.add("site/portico.egg-info/entry_points.txt", DRIVERS)
    assert command_without_former_name() is None
    assert check_software().status == "ok"


def test_distribution_of_the_former_name_is_replaced(environment: Environment, wheel: Path) -> None:
    environment.install("portico", entry_points=DRIVERS)
    environment.install("portico-gateway", from_file(wheel))
    pip = f"{environment.python} -m pip"
    command = f"{pip} uninstall --yes portico portico-gateway && {pip} install '{wheel}'"
    assert command_without_former_name() == command
    check = check_software()
    assert (check.status, check.command) == ("warning", command) and "`portico`, the former name" in check.text


def test_tool_of_the_former_name_is_replaced(environment: Environment) -> None:
    # An editable tool, whose folder has a newer source by now.
    environment.install("portico", entry_points=DRIVERS)
    environment.add("pipx_metadata.json", "{}")
    tool = environment.prefix.name
    assert command_without_former_name() == f"pipx uninstall {tool} && pipx install --editable {quote(str(SOURCE))}"
    environment.uv_tool(f'{{ name = "portico", extras = ["nodes"], editable = "{SOURCE}" }}')
    command = f"uv tool uninstall {tool} && uv tool install --editable '{SOURCE}[nodes]'"
    assert command_without_former_name() == command


async def test_daemon_tells_how_the_former_name_is_replaced(tmp_path: Path) -> None:
    others = Environment(tmp_path)
    others.install("portico", entry_points=DRIVERS)
    config = write_config(tmp_path, gateway_config(tmp_path))
    daemon = Daemon(config, tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}, forked=False)
    await daemon.start()
    await daemon.stop()
    assert b"WARNING" in daemon.stderr
    assert b"-m pip uninstall --yes portico portico-gateway && " in daemon.stderr

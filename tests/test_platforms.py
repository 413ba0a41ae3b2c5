"""The gateway as if on macOS (tests/support/as_macos.py): nothing needs what only Linux has."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from pathlib import Path

from tests.conftest import write_config
from tests.support.as_macos import ABSENT
from tests.support.daemon import gateway_config, http_client

IMPORT_ALL = """
import importlib, json, sys
from tests.support.as_macos import remove_linux
remove_linux()
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
"""


def modules() -> list[str]:
    """Return the names of all modules but those that run when they are imported."""
    import drivers
    import gateway

    found = [name for root in (gateway, drivers) for _, name, _ in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")]
    return [name for name in found if not name.endswith("__main__")]


def test_every_module_can_be_imported() -> None:
    imported = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(modules())], capture_output=True, text=True, timeout=120
    )
    assert imported.returncode == 0, imported.stderr


def test_removed_names_exist_on_linux() -> None:
    """A name that is misspelt would remove nothing."""
    if sys.platform == "linux":
        for module, names in ABSENT.items():
            assert [name for name in names.split() if not hasattr(module, name)] == []


async def test_daemon_serves_sessions_and_tasks_and_ends_agents(tmp_path: Path) -> None:
    slow_agent = {"driver": "script", "cwd": str(tmp_path / "scenes"), "options": {"scenario": "slow.json"}}
    config = gateway_config(tmp_path, agents={"slow": slow_agent})
    (tmp_path / "scenes" / "slow.json").write_text(json.dumps({"turns": [{"steps": [{"text": "begin"}, {"delay": 60}]}]}))
    command = [sys.executable, "-m", "tests.support.as_macos", "serve", "--config", str(write_config(tmp_path, config))]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    log = (tmp_path / "log").open("wb")
    process = await create_subprocess_exec(*command, stdout=PIPE, stderr=log, stdin=DEVNULL, env=environment)
    assert process.stdout is not None
    lines = list[str]()
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        async with http_client(url) as client:
            task = await client.post("/v1/execute", json={"driver": "script", "task": "hello"})
            assert '"exit_code":0' in task.text
            body = {"agent": {"name": "script"}, "messages": [{"role": "user", "content": "hello"}]}
            created = await client.put("/session", json=body)
            assert created.status_code == 201 and created.json()["stopReason"] == "end_turn"
            assert (await client.get("/v1/drivers")).status_code == 200
            async with client.stream("POST", "/v1/execute", json={"driver": "slow", "task": "x"}) as stream:
                async for line in stream.aiter_lines():
                    lines += [line] if line else []
                    if "begin" in line:
                        process.terminate()
            assert "the gateway was shut down" in lines[-2] and '"kind":"session_end"' in lines[-1]
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0
        log.close()
    assert "Traceback" not in (tmp_path / "log").read_text()

"""A daemon with the agents `script` and `echo`, for pages of the console: started, killed and restarted at the same address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.conftest import write_config
from tests.support.daemon import KEY, NO_CERTIFICATES, gateway_config

SESSIONS = "/aap/v3/sessions"


class ConsoleDaemon:
    """`portico serve` in a process of its own. `api` is a client with the key; `url` is the same after a restart.

    The working folder of the agents is `folder`/scenes. `tables` are added to the configuration.
    """

    url: str
    api: httpx.Client
    config: Path
    """The file of the configuration."""

    def __init__(self, folder: Path, **tables: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        agents = {"echo": {"driver": "echo"}, **tables.pop("agents", {})}
        self.folder, self.scenes = folder, folder / "scenes"
        self._config = gateway_config(folder, agents=agents, **tables)
        self._process: subprocess.Popen[str] | None = None
        self._scenarios = 0

    def start(self) -> ConsoleDaemon:
        """Start it, and wait until it listens."""
        self.config = write_config(self.folder, self._config)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", "--config", str(self.config)],
                stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("portico listening on "):
            self.stop()
            raise RuntimeError(f"no listening line but {line!r}: {self.log.read_text()[-2000:]}")
        self.url = line.split()[-1]
        # The next start listens there too.
        self._config["server"]["port"] = urlsplit(self.url).port
        self.api = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60, verify=NO_CERTIFICATES, trust_env=False
        )
        return self

    @property
    def log(self) -> Path:
        """The log of the daemon."""
        return self.folder / "daemon.log"

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the signal, and wait for the end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.communicate(timeout=60)
            self._process = None
            self.api.close()

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.stop(signal.SIGKILL)

    def scenario(self, *turns: Any, name: str = "", folder: Path | None = None) -> str:
        """Write a scenario of these turns, each a list of steps or a whole turn. Return its name for the option `scenario`."""
        self._scenarios += 1
        name = name or f"scene{self._scenarios}.json"
        bodies = [turn if isinstance(turn, dict) else {"steps": turn} for turn in turns]
        ((folder or self.scenes) / name).write_text(json.dumps({"turns": bodies}))
        return name

    def new_session(self, *turns: Any, agent: str = "script", scenes: Path | None = None, **fields: Any) -> str:
        """Create a session, of the agent `script` with a scenario of these turns. Return its id.

        `scenes` is the working folder of another agent of the driver `script`.
        """
        config: dict[str, Any] = {"name": agent, **fields.pop("agent_fields", {})}
        if turns:
            config["options"] = {"scenario": self.scenario(*turns, folder=scenes), **config.get("options", {})}
        answer = self.api.post(SESSIONS, json={"agent": config, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["sessionId"])

    def send(self, session: str, *messages: Any, wait: bool = True, **fields: Any) -> dict[str, Any]:
        """Send a turn, strings as the user's messages. With `wait`, return its result; else it goes on by itself."""
        bodies = [message if isinstance(message, dict) else {"role": "user", "content": message} for message in messages]
        body = {"messages": bodies, **fields}
        if wait:
            answer = self.api.post(f"{SESSIONS}/{session}/turns", json=body)
            assert answer.status_code == 200, answer.text
            return dict(answer.json())
        with self.api.stream("POST", f"{SESSIONS}/{session}/turns", json={**body, "stream": "delta"}) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_lines())
        return {}

    def session(self, session: str) -> dict[str, Any]:
        """Return `GET /sessions/:id`."""
        answer = self.api.get(f"{SESSIONS}/{session}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

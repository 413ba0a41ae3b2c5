"""What the daemon tells the service manager that has started it, and the exit code that forbids another start."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from gateway.server.daemon import EXIT_TIMEOUT, LATE_EXIT
from gateway.server.service_manager import announce_ready
from tests.conftest import write_config
from tests.support.daemon import Daemon, gateway_config
from tests.support.portico_command import PorticoCommand


def manager(address: str) -> socket.socket:
    """The socket of a service manager."""
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    opened.bind(address)
    opened.settimeout(60)
    return opened


async def received(opened: socket.socket) -> dict[str, str]:
    lines = (await asyncio.to_thread(opened.recv, 4096)).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


async def test_manager_is_told_when_the_daemon_listens_and_how_long_its_end_takes(daemon: Daemon, tmp_path: Path) -> None:
    with manager(str(tmp_path / "notify")) as opened:
        daemon.env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        await daemon.start()
        assert await received(opened) == {"READY": "1", "STATUS": f"listening on {daemon.url}"}
        assert await daemon.stop() == 0
        stopping = await received(opened)
    assert stopping["STOPPING"] == "1"
    # The configuration of the tests has a grace of one second.
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) / 1e6 > 1 + EXIT_TIMEOUT + LATE_EXIT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sockets without a file")
async def test_socket_may_be_a_name_without_a_file(tmp_path: Path) -> None:
    name = f"portico-test{tmp_path}"
    with manager(f"\0{name}") as opened:
        announce_ready("http://127.0.0.1:1", {"NOTIFY_SOCKET": f"@{name}"})
        assert (await received(opened))["READY"] == "1"


def test_manager_that_does_not_read_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with manager(str(tmp_path / "notify")):
        for _ in range(10_000):
            announce_ready("http://127.0.0.1:1", {"NOTIFY_SOCKET": str(tmp_path / "notify")})
            if caplog.records:
                break
    announce_ready("http://127.0.0.1:1", {"NOTIFY_SOCKET": str(tmp_path / "nowhere")})
    announce_ready("http://127.0.0.1:1", {})
    full, missing = (record.getMessage() for record in caplog.records)
    assert str(tmp_path / "notify") in full and str(tmp_path / "nowhere") in missing


async def test_settings_that_are_wrong_have_an_exit_code_of_their_own(tmp_path: Path) -> None:
    for tables in ({"agents": {"x": {"driver": "nothing"}}}, {"server": {"host": "0.0.0.0"}, "auth": {"keys": ["12345678"]}}):
        write_config(tmp_path, {**gateway_config(tmp_path), **tables})
        code, out, err = await PorticoCommand(tmp_path, "serve").run()
        assert (code, out) == (78, "") and err.startswith("Error: "), tables


async def test_problem_that_may_pass_has_another_exit_code(daemon: Daemon, tmp_path: Path) -> None:
    await daemon.start()
    taken = int(daemon.url.rpartition(":")[2])
    (tmp_path / "other").mkdir()
    write_config(tmp_path / "other", gateway_config(tmp_path / "other", server={"port": taken}))
    code, _, err = await PorticoCommand(tmp_path / "other", "serve").run()
    assert code not in (0, 78) and "address already in use" in err

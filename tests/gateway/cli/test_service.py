"""`portico service`: the unit of systemd and the property list of launchd, and calls of their programs, which are fakes here."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway import __version__
from gateway.cli import service_definition
from gateway.cli.launchd import LABEL, Launchd
from gateway.cli.main import main
from gateway.cli.service import STOP_SECONDS
from gateway.cli.service_definition import ServiceDefinition, service_environment
from gateway.cli.systemd import Systemd
from gateway.errors import ConfigError
from gateway.server.daemon import EXIT_TIMEOUT, LATE_EXIT
from tests.conftest import write_config
from tests.support.daemon import Daemon

PROGRAM = "/opt/bin/portico"
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >> {folder}/calls
case "$*" in {cases} esac
"""
ACTIVE = {"ActiveState": "active", "UnitFileState": "enabled", "MainPID": "4711"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a PATH of one folder, without any service manager."""
    for name in set(os.environ) - {"LANG", "TMPDIR", "PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    (folder / "bin").mkdir(parents=True)
    for name in ("sh", "basename", "cat", "tail"):
        (folder / "bin" / name).symlink_to(shutil.which(name, path="/usr/bin:/bin") or "")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("PATH", str(folder / "bin"))
    monkeypatch.setattr(sys, "argv", [PROGRAM, "service"])
    monkeypatch.setattr(sys, "platform", "linux")
    # The folders of tests are in one of them.
    monkeypatch.setattr(service_definition, "SHARED_FOLDERS", (str(tmp_path / "shared"),))
    return folder


def service(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["service", *arguments])


def fake(home: Path, name: str, answers: Mapping[str, str]) -> None:
    """Put a program on PATH that logs its calls; `answers` are shell commands by patterns of its arguments."""
    cases = " ".join(f"{pattern.replace(' ', '?')}) {command};;" for pattern, command in answers.items())
    path = home / "bin" / name
    path.write_text(FAKE.format(folder=home, cases=cases))
    path.chmod(0o755)


def fake_systemctl(home: Path, state: Mapping[str, str], **answers: str) -> None:
    (home / "state").write_text("".join(f"{name}={value}\n" for name, value in state.items()))
    shown = {"*show portico.service*": f"cat {home}/state", "*show-environment": "echo LANG=C; echo HTTPS_PROXY=http://proxy"}
    fake(home, "systemctl", answers | shown)
    fake(home, "journalctl", {"*": "echo 'Error: the last line of the log'"})


def calls(home: Path, program: str) -> list[str]:
    lines = (home / "calls").read_text().splitlines() if (home / "calls").exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{program} ")]


def unit(home: Path) -> Path:
    return home / ".config/systemd/user/portico.service"


def set_up_agents(home: Path, *programs: str) -> None:
    for program in programs:
        (home / "bin" / program).write_text("#!/bin/sh\n")
        (home / "bin" / program).chmod(0o755)


# -- systemd -----------------------------------------------------------------------------------------------------------


def test_print_changes_nothing_and_needs_no_systemd(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(home, {"limits": {"grace": 20.5}})
    monkeypatch.chdir(home)
    monkeypatch.setenv("PORTICO_DATA_DIR", "~/sessions")
    monkeypatch.setenv("PORTICO_API_KEY", "secret-of-the-shell")
    before = sorted(home.rglob("*"))
    printed = service("install", "--config", config.name, "--print")
    assert (printed.exit_code, printed.stderr) == (0, f"would write {unit(home)}:\n")
    assert f'\nExecStart="{PROGRAM}" "serve" "--config" "{config}" "--data-dir" "{home}/sessions"\n' in printed.stdout
    assert f'\nEnvironment="PATH={home}/bin"\n' in printed.stdout
    for line in ("Type=notify", "Restart=on-failure", "RestartPreventExitStatus=78", "KillMode=mixed", "TimeoutStopSec=31"):
        assert f"\n{line}\n" in printed.stdout
    assert "secret" not in printed.stdout
    assert sorted(home.rglob("*")) == before


def test_time_for_the_end_is_longer_than_the_daemon_takes() -> None:
    assert STOP_SECONDS > EXIT_TIMEOUT + LATE_EXIT


@pytest.mark.parametrize("folder", ["plain", "a b%h$HOME'\"\\n${X}é"])
def test_systemd_accepts_the_unit_and_reads_the_same_words(folder: str, tmp_path: Path) -> None:
    # Those are not allowed in the path of a program.
    program = tmp_path / folder.translate(str.maketrans("", "", "'\"\\$")) / "portico"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    manager = Systemd(tmp_path)
    path = f"{tmp_path}/{folder}:/usr/bin"
    definition = ServiceDefinition((str(program), "serve", "--config", f"{tmp_path}/{folder}"), {"PATH": path}, 13)
    manager.file.parent.mkdir(parents=True)
    manager.file.write_text(manager.content(definition))
    assert manager.installed() == definition
    analyze = shutil.which("systemd-analyze", path="/usr/bin:/bin")
    if analyze is None:
        pytest.skip("systemd is not installed: only what Portico reads is checked")
    # Not in pytest's folder: systemd has units with sockets in it, whose paths may have 108 characters.
    environment = {"XDG_RUNTIME_DIR": tempfile.mkdtemp(), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    checked = subprocess.run(
        [analyze, "--user", "verify", str(manager.file)], env=environment, capture_output=True, text=True, timeout=60
    )
    # An unknown key or value is a line on standard error only.
    assert (checked.returncode, checked.stderr) == (0, "")


def test_program_that_systemd_does_not_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quotes or backslashes"):
        Systemd(tmp_path).content(ServiceDefinition(("/home/o'neill/portico", "serve"), {}, 13))


def test_line_breaks_cannot_add_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="control character"):
        Systemd(tmp_path).content(ServiceDefinition((PROGRAM, "serve", "a\nExecStop=rm"), {}, 13))


async def test_install_starts_the_unit_and_reports_the_address(
    home: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await daemon.start()
    fake_systemctl(home, {**ACTIVE, "StatusText": f"listening on {daemon.url}"})
    for name in ("ANTHROPIC_API_KEY", "HTTPS_PROXY", "OPENAI_API_KEY", "PORTICO_API_KEY", "UNRELATED"):
        monkeypatch.setenv(name, "value-of-the-shell")
    monkeypatch.setenv("PORTICO_SERVER__LOG_LEVEL", "debug")
    monkeypatch.setenv("PORTICO_DATA_DIR", str(home / "data"))
    installed = service("install")
    assert installed.exit_code == 0, installed.output
    changes = [call for call in calls(home, "systemctl") if " show" not in call]
    assert changes == ["--user daemon-reload", "--user enable portico.service", "--user restart portico.service"]
    assert unit(home).read_text().startswith("# Written by") and "value-of-the-shell" not in unit(home).read_text()
    assert f"Portico {__version__} runs on {daemon.url}\n" in installed.stdout
    assert "loginctl enable-linger" in installed.stdout and calls(home, "loginctl") == []
    # HTTPS_PROXY is in the environment of the user's systemd.
    [missing] = re.findall(r"these variables of this shell: (.*?)\.", installed.stdout)
    assert missing == "ANTHROPIC_API_KEY, OPENAI_API_KEY, PORTICO_API_KEY, PORTICO_SERVER__LOG_LEVEL"


def test_start_that_fails_is_an_error_with_the_end_of_the_log(home: Path) -> None:
    fake_systemctl(home, {"ActiveState": "failed"}, **{"*restart*": "exit 1"})
    failed = service("install")
    assert failed.exit_code == 1
    assert failed.stderr == "Error: the service is installed, but does not start:\n  Error: the last line of the log\n"


async def test_status_of_a_service_that_runs(home: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    await daemon.start()
    fake_systemctl(home, {**ACTIVE, "StatusText": f"listening on {daemon.url}"})
    set_up_agents(home, "claude")
    assert service("install").exit_code == 0
    report = service("status")
    lines = [
        f"installed   {unit(home)}",
        "running     yes, process 4711",
        f"address     {daemon.url}",
        f"version     {__version__}",
    ]
    assert (report.exit_code, report.stdout.splitlines()) == (0, lines)
    # A program that was installed since, in a folder that was not on PATH.
    (home / "npm").mkdir()
    (home / "npm" / "codex").symlink_to(home / "bin" / "claude")
    monkeypatch.setenv("PATH", f"{home}/bin:{home}/npm")
    problem = "problem     the service does not find the program of codex: run `portico service install` in this shell"
    assert service("status").stdout.splitlines() == [*lines, problem]
    await daemon.stop()
    stopped = service("status")
    assert stopped.exit_code == 1 and f"address     {daemon.url} (does not answer)" in stopped.stdout


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"ActiveState": "inactive"}, "it is stopped; `systemctl --user start portico` starts it"),
        ({"ActiveState": "failed", "ExecMainCode": "1", "ExecMainStatus": "78"}, "its settings are wrong; correct them"),
        (
            {"ActiveState": "activating", "SubState": "auto-restart", "ExecMainCode": "1", "ExecMainStatus": "1"},
            "it exited with code 1, and is started again every 5 seconds",
        ),
        (
            {"ActiveState": "failed", "Result": "timeout", "ExecMainCode": "2", "ExecMainStatus": "9"},
            "it failed (timeout): it was ended by signal 9",
        ),
        ({"ActiveState": "activating", "SubState": "start"}, "it is starting"),
    ],
)
def test_status_of_a_service_that_does_not_run_says_why(home: Path, state: dict[str, str], reason: str) -> None:
    fake_systemctl(home, state)
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("")
    report = service("status")
    assert report.exit_code == 1
    assert f"running     no: {reason}" in report.stdout
    assert report.stdout.endswith("its log ends with:\n  Error: the last line of the log\n")


def test_uninstall_stops_and_removes_the_unit(home: Path) -> None:
    fake_systemctl(home, {"ActiveState": "inactive"})
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text(Systemd(home).content(ServiceDefinition((PROGRAM, "serve"), {"PATH": "/bin"}, 13)))
    removed = service("uninstall")
    assert (removed.exit_code, unit(home).exists()) == (0, False)
    changes = [call for call in calls(home, "systemctl") if " show" not in call]
    assert changes == ["--user disable --now portico.service", "--user daemon-reload", "--user reset-failed portico.service"]
    again = service("uninstall")
    assert again.exit_code == 1 and "is not installed" in again.stderr


def test_unit_of_somebody_else_is_left_as_it_is(home: Path) -> None:
    fake_systemctl(home, ACTIVE)
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("[Service]\nExecStart=/bin/true\n")
    for command in ("install", "uninstall"):
        refused = service(command)
        assert refused.exit_code == 1 and "is not from `portico service install`" in refused.stderr
    assert unit(home).read_text() == "[Service]\nExecStart=/bin/true\n"
    assert [call for call in calls(home, "systemctl") if " show" not in call] == []


@pytest.mark.parametrize("command", ["install", "status", "logs", "uninstall"])
def test_without_systemd_of_the_user_every_command_refuses_and_says_what_to_do(home: Path, command: str) -> None:
    absent = service(command)
    assert absent.exit_code == 1 and "there is no systemd here (`systemctl` is not on PATH)" in absent.stderr
    fake(home, "systemctl", {"*": "echo 'Failed to connect to bus: No medium found' >&2; exit 1"})
    refused = service(command)
    assert refused.exit_code == 1
    assert "systemd does not run for this user (`systemctl --user`: Failed to connect to bus: No medium found)" in refused.stderr
    assert "make `portico serve` the container's command" in refused.stderr
    assert not unit(home).exists()


@pytest.mark.parametrize(("arguments", "command"), [((), "--lines 100 --no-pager"), (("-f", "-n", "7"), "--lines 7 --follow")])
def test_logs_executes_journalctl(home: Path, arguments: tuple[str, ...], command: str) -> None:
    fake_systemctl(home, ACTIVE)
    unit(home).parent.mkdir(parents=True)
    unit(home).write_text("")
    environment = {"HOME": str(home), "PATH": str(home / "bin")}
    argv = [sys.executable, "-m", "gateway", "service", "logs", *arguments]
    printed = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert (printed.returncode, printed.stdout) == (0, "Error: the last line of the log\n")
    assert calls(home, "journalctl") == [f"--user --unit portico.service {command}"]


def test_wrong_settings_are_not_installed(home: Path) -> None:
    fake_systemctl(home, ACTIVE)
    refused = service("install", "--config", str(write_config(home, {"server": {"prot": 1}})))
    assert refused.exit_code == 1 and "server.prot" in refused.stderr
    assert not unit(home).exists()


def test_path_has_only_folders_that_stay(tmp_path: Path) -> None:
    stays, shared, of_shell = tmp_path / "stays", tmp_path / "shared", tmp_path / "fnm_multishells"
    for folder in (stays / "22/bin", stays / "24/bin", shared, of_shell):
        folder.mkdir(parents=True)
    (shared / "shell-1").symlink_to(stays / "22")
    (of_shell / "shell-2").symlink_to(stays / "24")
    path = f"{stays}/bin:{shared}/shell-1/bin:{shared}/other:{of_shell}/shell-2/bin:relative::.:/usr/bin:{stays}/bin:/a\nb"
    environment = service_environment({"PATH": path, "XDG_DATA_HOME": "/data", "XDG_RUNTIME_DIR": "/run/x"})
    assert environment == {"PATH": f"{stays}/bin:{stays}/22/bin:{stays}/24/bin:/usr/bin", "XDG_DATA_HOME": "/data"}


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    refused = service("install", "--print")
    assert refused.exit_code == 1 and "there is no service for this system (win32)" in refused.stderr


# -- launchd -----------------------------------------------------------------------------------------------------------

PRINTED = (
    "gui/501/local.portico = {{\n\tactive count = 1\n\tstate = {state}\n\n\tpid = 4711\n\tlast exit code = 78: EX_CONFIG\n}}\n"
)


@pytest.fixture
def macos(home: Path, monkeypatch: pytest.MonkeyPatch) -> Launchd:
    """A Mac whose launchd has loaded the agent while the file `loaded` exists."""
    monkeypatch.setattr(sys, "platform", "darwin")
    (home / "printed").write_text(PRINTED.format(state="running"))
    launchd = Launchd(home)
    answers = {
        f"print*{LABEL}": f"cat {home}/loaded",
        f"bootout*{LABEL}": f"rm {home}/loaded; exit 36",
        "bootstrap*": f"cat {home}/printed > {home}/loaded",
    }
    (home / "bin" / "rm").symlink_to(shutil.which("rm", path="/usr/bin:/bin") or "")
    fake(home, "launchctl", answers)
    return launchd


def test_property_list_is_valid_and_has_no_secret(home: Path, macos: Launchd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-of-the-shell")
    printed = service("install", "--print", "--data-dir", "~/a <b> & c")
    assert printed.exit_code == 0 and not macos.file.exists()
    written = plistlib.loads(printed.stdout.encode(), fmt=plistlib.FMT_XML)
    assert written["ProgramArguments"] == [PROGRAM, "serve", "--data-dir", f"{home}/a <b> & c"]
    assert written["EnvironmentVariables"] == {"PATH": str(home / "bin")}
    assert (written["RunAtLoad"], written["KeepAlive"], written["ExitTimeOut"]) == (True, {"SuccessfulExit": False}, 13)
    assert written["StandardErrorPath"] == str(home / "Library/Logs/portico.log")
    assert "secret" not in printed.stdout
    if plutil := shutil.which("plutil", path="/usr/bin"):
        checked = subprocess.run([plutil, "-lint", "-"], input=printed.stdout, capture_output=True, text=True, timeout=60)
        assert checked.returncode == 0, checked.stdout


async def test_agent_of_launchd_is_installed_replaced_shown_and_removed(home: Path, macos: Launchd, daemon: Daemon) -> None:
    await daemon.start()
    port = int(daemon.url.rpartition(":")[2])
    config = str(write_config(home, {"server": {"port": port}}))
    domain = f"gui/{os.getuid()}"
    for changes in (["enable", "bootstrap"], ["bootout", "enable", "bootstrap"]):
        (home / "calls").unlink(missing_ok=True)
        installed = service("install", "--config", config)
        assert installed.exit_code == 0, installed.output
        assert f"Portico {__version__} runs on {daemon.url}\n" in installed.stdout
        changing = [call for call in calls(home, "launchctl") if not call.startswith("print ")]
        assert [call.split()[0] for call in changing] == changes
        assert changing[-1] == f"bootstrap {domain} {macos.file}"
    assert macos.log.stat().st_mode & 0o777 == 0o600
    # The settings are those of the service.
    report = service("status")
    assert report.exit_code == 0, report.output
    assert f"running     yes, process 4711\naddress     {daemon.url}\nversion     {__version__}\n" in report.stdout
    assert service("uninstall").exit_code == 0
    assert not macos.file.exists() and not (home / "loaded").exists()


def test_status_of_an_agent_of_launchd_that_does_not_run(home: Path, macos: Launchd) -> None:
    macos.file.parent.mkdir(parents=True)
    macos.file.write_text(macos.content(ServiceDefinition((PROGRAM, "serve"), {}, 13)))
    unloaded = service("status")
    assert unloaded.exit_code == 1 and "running     no: it is not loaded" in unloaded.stdout
    (home / "loaded").write_text(PRINTED.format(state="spawn scheduled"))
    macos.log.parent.mkdir(parents=True)
    macos.log.write_text("".join(f"line {number}\n" for number in range(10)))
    failing = service("status")
    assert failing.exit_code == 1
    assert "no: its last exit code is 78: EX_CONFIG; launchd starts it again every 10 seconds" in failing.stdout
    assert failing.stdout.endswith("its log ends with:\n  line 5\n  line 6\n  line 7\n  line 8\n  line 9\n")
    assert macos.log_command(3, True) == ("tail", "-n", "3", "-F", str(macos.log))


def test_launchd_without_a_session_is_refused(home: Path, macos: Launchd) -> None:
    fake(home, "launchctl", {"print*": "exit 113"})
    refused = service("install")
    assert refused.exit_code == 1 and "log in at the screen" in refused.stderr
    assert not macos.file.exists()

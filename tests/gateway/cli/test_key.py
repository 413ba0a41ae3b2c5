"""`portico key`, and the sources of the default API keys."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from gateway.cli.main import main
from gateway.config import parse
from gateway.errors import ConfigError
from gateway.security.api_keys import default_api_keys
from gateway.security.authentication import ADMINISTRATOR, Authenticator
from gateway.security.credentials import Credentials
from gateway.security.loopback import is_loopback
from gateway.security.secret_files import read_or_create
from gateway.store import Store
from tests.conftest import write_config
from tests.support import stores
from tests.support.portico_command import PorticoCommand


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORTICO_API_KEY", "PORTICO_CONFIG", "PORTICO_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def run_key_command(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["key", *arguments], env=env)


def test_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    first, second = run_key_command(), run_key_command()
    assert (first.exit_code, first.stderr) == (0, "")
    assert first.stdout == second.stdout
    assert len(first.stdout.strip()) >= 32
    (file,) = tmp_path.rglob("api-key")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o077 == 0
    assert file.read_text() == first.stdout
    assert [other.name for other in file.parent.iterdir()] == ["api-key"]


def test_data_directory_comes_from_option_or_environment(tmp_path: Path) -> None:
    by_option = run_key_command("--data-dir", str(tmp_path / "a")).stdout
    by_env = run_key_command(env={"PORTICO_DATA_DIR": str(tmp_path / "b")}).stdout
    by_both = run_key_command("--data-dir", str(tmp_path / "a"), env={"PORTICO_DATA_DIR": str(tmp_path / "b")}).stdout
    assert (tmp_path / "a" / "api-key").read_text() == by_option == by_both
    assert (tmp_path / "b" / "api-key").read_text() == by_env != by_option


def test_configured_keys_take_precedence_over_the_key_file(tmp_path: Path) -> None:
    config = str(write_config(tmp_path, {"auth": {"keys": ["first-of-config", "second-of-config"]}}))
    assert run_key_command("--config", config).stdout == "first-of-config\n"
    assert run_key_command("--config", config, env={"PORTICO_API_KEY": " from-env\n"}).stdout == "from-env\n"
    assert run_key_command(env={"PORTICO_API_KEY": "from-env"}).stdout == "from-env\n"
    assert not list(tmp_path.rglob("api-key"))
    made = run_key_command(env={"PORTICO_API_KEY": " "}).stdout
    assert made == run_key_command().stdout


async def test_all_configured_keys_are_valid() -> None:
    settings = parse({"auth": {"keys": ["first-of-config", "second-of-config"]}})
    assert default_api_keys(settings, {"PORTICO_API_KEY": "from-env"}) == ("from-env", "first-of-config", "second-of-config")
    auth = Authenticator(default_api_keys(settings, {}), Credentials())
    for valid in ("first-of-config", "second-of-config"):
        assert await auth.check(f"Bearer {valid}") == ADMINISTRATOR


def test_empty_key_file_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "api-key"
    for left in ("", "\n"):
        file.write_text(left)
        assert len(run_key_command("--data-dir", str(tmp_path)).stdout.strip()) >= 32
        assert file.read_text() == run_key_command("--data-dir", str(tmp_path)).stdout


def test_concurrent_creation_returns_the_key_that_was_written_first(tmp_path: Path) -> None:
    file = tmp_path / "api-key"

    def slow() -> str:
        read_or_create(file, lambda: "first")
        return "second"

    assert read_or_create(file, slow) == "first"
    assert [other.name for other in tmp_path.iterdir()] == ["api-key"]


def test_short_key_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.keys\.1: .*8"):
        parse({"auth": {"keys": ["long-enough", "short"]}})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses_are_recognized(host: str) -> None:
    assert is_loopback(host)


async def test_daemon_accepts_the_key_that_the_command_prints(tmp_path: Path) -> None:
    async with PorticoCommand(tmp_path, "serve", "--port", "0", config=False).serving() as daemon:
        _, printed, _ = await PorticoCommand(tmp_path, "key", config=False).run()
        async with httpx.AsyncClient(base_url=daemon.url, timeout=60) as client:
            answers = [await client.get("/sessions", headers={"Authorization": f"Bearer {k}"}) for k in (printed.strip(), "x")]
    assert [answer.status_code for answer in answers] == [200, 401]


@pytest.mark.parametrize("kind", stores.KINDS)
def test_the_first_key_creates_the_store(tmp_path: Path, kind: stores.Kind) -> None:
    data = tmp_path / "data"
    with stores.use(kind):
        url = stores.store_url(data, empty=True)
    store = {"url": url} if kind == "postgresql" else {}
    config = write_config(tmp_path, {"server": {"data_dir": str(data)}, "store": store})
    assert run_key_command("list", "--config", str(config)).stdout == ""
    key = run_key_command("add", "phone", "--config", str(config)).stdout.strip()
    assert run_key_command("list", "--config", str(config)).stdout.startswith("phone\t")

    async def found() -> str | None:
        opened = await Store.open_unchanged(url)
        try:
            credentials = Credentials()
            await credentials.open(opened.credentials)
            return credentials.name_of(key)
        finally:
            await credentials.close()
            await opened.close()

    assert asyncio.run(found()) == "phone"
    assert [path for path in (data, *data.rglob("*")) if path.exists() and path.stat().st_mode & 0o077] == []


def test_no_key_is_added_to_a_store_that_has_lost_its_sessions(tmp_path: Path) -> None:
    """As the daemon does not start: an empty database would hide that."""
    (tmp_path / "transcripts").mkdir()
    (tmp_path / "transcripts" / "sess_1.jsonl").touch()
    added = run_key_command("add", "phone", "--data-dir", str(tmp_path))
    assert added.exit_code == 1 and "is empty, but was used before" in added.stderr
    assert not (tmp_path / "portico.db").exists()


def test_a_store_in_memory_has_its_keys_in_the_daemon(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"server": {"data_dir": str(tmp_path)}, "store": {"url": "sqlite://"}})
    added = run_key_command("add", "phone", "--config", str(config))
    assert added.exit_code == 1 and "/v1/keys" in added.stderr

"""Reads TOML and variables into settings. `config.example.toml` explains every key and is tested against these models."""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from platformdirs import user_config_path, user_data_path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from gateway.errors import InvalidSettings
from gateway.policy.rules import Rule

Runtime = Literal["podman", "docker", "bwrap"]
"""A program that runs the processes of agents in containers."""
AGENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NAME = r"[A-Za-z0-9._-]+"
_HOST = re.compile(rf"\*|(\*\.)?{_NAME}|[0-9A-Fa-f]*:[0-9A-Fa-f:.]+")
# http and https need a host: `http://*` would allow every website.
_ORIGIN = re.compile(
    rf"https?://({_NAME}|\[[0-9A-Fa-f:.]+\])(:(\d+|\*))?|(?!https?:|file:)[A-Za-z][A-Za-z0-9+.-]*://(\*|{_NAME}(:(\d+|\*))?)",
    # Origins are compared in lower case.
    re.IGNORECASE,
)

_NODE_ADDRESS = re.compile(rf"https?://({_NAME}|\[[0-9A-Fa-f:.]+\]):\d{{1,5}}")


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError(
            "must be a host name or an address without a port, '*.NAME' for all names below a domain, or '*' for any"
        )
    return text


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError(
            "must be an origin as browsers write it, such as 'http://localhost:*' or 'tauri://localhost': "
            "a scheme and a host, no path, and '*' for the port only (for the host, where the scheme is an app's own)"
        )
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("must be an IP address, such as '127.0.0.1', or a network, such as '10.0.0.0/8'") from None
    return text


def _listening_host(text: str) -> str:
    # Brackets belong to URLs: the system knows the address without them.
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _node_address(text: str) -> str:
    if text and (not _NODE_ADDRESS.fullmatch(text) or int(text.rpartition(":")[2]) > 65535):
        raise ValueError(
            "must be the URL of this node for the other nodes, with its port and nothing behind it: http://HOST:PORT"
        )
    return text


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Table):
    """Where the daemon listens and keeps its data."""

    host: Annotated[str, AfterValidator(_listening_host)] = "127.0.0.1"
    port: int = Field(default=7700, ge=0, le=65535, strict=True)
    hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = ()
    origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()
    trusted_proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    folders: Literal["any", "listed"] = "any"
    data_dir: Path = Field(default_factory=lambda: user_data_path("portico", appauthor=False))
    keep_alive: float = Field(default=15.0, gt=0, strict=True)
    linger: float = Field(default=10800.0, ge=0, strict=True)
    max_body: int = Field(default=64 * 1024 * 1024, ge=1024, strict=True)
    on_disconnect: Literal["continue", "cancel"] = "continue"
    errors_as_text: bool = Field(default=True, strict=True)
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    log_format: Literal["text", "json"] = "text"
    open_metrics: bool = Field(default=False, strict=True)
    discover_agents: bool = Field(default=True, strict=True)
    console: bool = Field(default=True, strict=True)


class AuthSettings(_Table):
    """Authentication. Without `keys`, the key is PORTICO_API_KEY or a generated one in the data directory."""

    keys: tuple[Annotated[str, Field(min_length=8)], ...] = ()
    share_sessions: bool = Field(default=False, strict=True)


class LimitSettings(_Table):
    """Time limits in seconds (0 is no limit) and counts. Time limits but `answer` pause while an agent waits for the client."""

    start: float = Field(default=60.0, ge=0, strict=True)
    idle: float = Field(default=900.0, ge=0, strict=True)
    total: float = Field(default=7200.0, ge=0, strict=True)
    grace: float = Field(default=3.0, ge=0, strict=True)
    answer: float = Field(default=86400.0, ge=0, strict=True)
    sleep_after: float = Field(default=900.0, ge=0, strict=True)
    live_agents: int = Field(default=16, ge=1, strict=True)
    running_turns: int = Field(default=0, ge=0, strict=True)
    turns_per_key: int = Field(default=0, ge=0, strict=True)
    connections_per_key: int = Field(default=512, ge=0, strict=True)
    streams_per_key: int = Field(default=256, ge=0, strict=True)
    sessions_per_key: int = Field(default=10_000, ge=0, strict=True)


class StoreSettings(_Table):
    """The database, and how long it keeps rows. An empty `url` is an SQLite file in the data directory.

    `durability`: whether clients get an event before or after it is stored. `keep_sessions_days`: 0 keeps sessions for ever.
    """

    url: str = ""
    durability: Literal["sent-first", "stored-first"] = "sent-first"
    keep_sessions_days: float = Field(default=0.0, ge=0, strict=True)
    keep_executions_days: float = Field(default=7.0, gt=0, strict=True)
    keep_audit_days: float = Field(default=90.0, gt=0, strict=True)
    keep_keys_days: float = Field(default=7.0, gt=0, strict=True)


class ListedMcpServer(_Table):
    """An MCP server that clients may bring: `command` and `args`, with variables of the names in `env`, or `url`."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    url: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either `command` (with `args` and `env`) or `url`")
        if self.url is not None and (self.args or self.env):
            raise ValueError("`args` and `env` are of a `command`; a server with `url` has none")
        return self


class ContainerSettings(_Table):
    """The image of an agent's container, and the mounts in it. A mount is `SOURCE[:TARGET][:ro|rw]`, read-only by default."""

    image: str | None = None
    home: Path | None = None
    mounts: tuple[str, ...] = ()
    network: str = "host"
    memory: str | None = None
    cpus: float | None = Field(default=None, gt=0)
    args: tuple[str, ...] = ()

    @field_validator("image", "network")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and (not name or name.startswith("-") or any(map(str.isspace, name))):
            raise ValueError(f"{name!r} is not a name")
        return name

    @field_validator("memory")
    @classmethod
    def _is_size(cls, memory: str | None) -> str | None:
        if memory is not None and not re.fullmatch(r"[1-9]\d*[bkmg]?", memory):
            raise ValueError(f"{memory!r} is not a size; write a number with b, k, m or g, such as 4g")
        return memory

    @field_validator("mounts")
    @classmethod
    def _are_mounts(cls, mounts: tuple[str, ...]) -> tuple[str, ...]:
        for mount in mounts:
            parse_mount(mount)
        return mounts


def parse_mount(text: str) -> tuple[Path, Path, bool]:
    """Return the source and the target of a mount, absolute, and whether it is writable. Raises ValueError."""
    parts = text.split(":")
    access = parts.pop() if parts[-1] in ("ro", "rw") else "ro"
    paths = [Path(part).expanduser() for part in parts]
    if not 1 <= len(paths) <= 2 or not all(path.is_absolute() for path in paths):
        raise ValueError(
            f"{text!r} is not a mount; write SOURCE, SOURCE:TARGET, SOURCE:rw or SOURCE:TARGET:rw with absolute paths"
        )
    return paths[0], paths[-1], access == "rw"


class AgentSettings(_Table):
    """One agent: a driver with its program, working directory and defaults."""

    driver: str
    program: str | None = None
    args: tuple[str, ...] = ()
    cwd: Path | None = None
    env: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)
    record: bool = Field(default=False, strict=True)
    locked: tuple[str, ...] = ()
    sandbox: Literal["off", "workspace-write"] = "off"
    sandbox_writable: tuple[Path, ...] = ()
    run_in: Literal["node", "podman", "docker", "bwrap"] = "node"
    container: ContainerSettings = ContainerSettings()
    mcp: Literal["none", "listed", "any"] = "any"
    mcp_servers: tuple[ListedMcpServer, ...] = ()
    title: str | None = None
    description: str | None = None
    policy: tuple[Rule, ...] = ()
    allow_bypass: bool = Field(default=False, strict=True)
    on_rate_limit: Literal["fail", "wait"] = "fail"
    worktree: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _list_is_used(self) -> Self:
        if self.mcp_servers and self.mcp != "listed":
            raise ValueError('`mcp_servers` has no effect without mcp = "listed"')
        return self

    @property
    def runtime(self) -> Runtime | None:
        """The program that runs the containers of the agent's processes; None if the processes run in no container."""
        return None if self.run_in == "node" else self.run_in

    @property
    def confines(self) -> bool:
        """Whether the agent's processes write in the folders of the session only."""
        return self.sandbox != "off" or self.run_in != "node"

    @model_validator(mode="after")
    def _container_is_possible(self) -> Self:
        given = self.container.model_fields_set
        if self.run_in == "node":
            if given:
                raise ValueError('`container` has no effect without run_in = "podman", "docker" or "bwrap"')
            return self
        if self.sandbox != "off":
            raise ValueError(f'run_in = "{self.run_in}" confines the agent; leave `sandbox` out')
        if self.run_in == "bwrap":
            if useless := sorted(given & {"image", "memory", "cpus"}):
                raise ValueError(
                    f'container.{useless[0]} needs run_in = "podman" or "docker": bwrap shows the system of this machine'
                )
            if self.container.network not in ("host", "none"):
                raise ValueError('container.network is "host" or "none" with run_in = "bwrap"')
        elif self.container.image is None:
            raise ValueError(f'container.image is missing: the image with the agent\'s program, for run_in = "{self.run_in}"')
        return self


OwnTools = Literal["none", "read-only", "agent"]
"""Which of its own tools an agent has for clients that cannot be asked for permission."""


class OpenAISettings(_Table):
    """The APIs of OpenAI and Anthropic, for clients that know no sessions and cannot be asked for permission.

    `tools` are the agent's own tools, `show_tools` is how a client sees their calls.
    """

    tools: OwnTools = "none"
    show_tools: Literal["off", "reasoning", "text"] = "reasoning"


class NodeSettings(_Table):
    """This daemon as a node of a cluster, which an `address` makes it: the URL by which the other nodes reach it.

    `folders` lists the folders of this machine that agents may work in; an empty list permits all. Nodes sign their requests to
    each other with the keys in PORTICO_NODE_KEYS, or one a line in `key_file`. All nodes encrypt secrets with the key in
    PORTICO_ENCRYPTION_KEY, or in `encryption_key_file`.
    """

    address: Annotated[str, AfterValidator(_node_address)] = ""
    labels: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()
    key_file: str = ""
    encryption_key_file: str = ""


class Settings(_Table):
    """The whole configuration."""

    server: ServerSettings = Field(default_factory=ServerSettings)
    auth: AuthSettings = Field(default_factory=AuthSettings)
    limits: LimitSettings = Field(default_factory=LimitSettings)
    store: StoreSettings = Field(default_factory=StoreSettings)
    openai: OpenAISettings = Field(default_factory=OpenAISettings)
    node: NodeSettings = Field(default_factory=NodeSettings)
    agents: dict[Annotated[str, Field(pattern=AGENT_NAME)], AgentSettings] = Field(default_factory=dict)

    _file: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _node_has_a_shared_store(self) -> Self:
        if self.node.address and not self.store.url.startswith("postgres"):
            raise ValueError("node.address: the nodes of a cluster have one store on PostgreSQL: set store.url, or remove [node]")
        return self

    def __eq__(self, other: object) -> bool:
        # Whichever file they are from.
        return isinstance(other, Settings) and self.__dict__ == other.__dict__

    @property
    def file(self) -> Path | None:
        """The file that they were read from; None without one."""
        return self._file

    @property
    def digest(self) -> str:
        """A digest of all values."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def data_dir(self) -> Path:
        return self.server.data_dir.expanduser().absolute()

    @property
    def container_runtimes(self) -> set[Runtime]:
        """The programs that run the containers of agents with an image."""
        return {agent.runtime for agent in self.agents.values() if agent.runtime is not None and agent.container.image}

    @property
    def secret_paths(self) -> tuple[Path, ...]:
        """The data directory, the configuration file, an SQLite database elsewhere, and the keys of a node: what agents in a
        sandbox cannot read."""
        files = [self._file] if self._file else []
        files += [Path(file).expanduser().absolute() for file in (self.node.key_file, self.node.encryption_key_file) if file]
        scheme, _, database = self.store.url.partition(":///")
        if scheme == "sqlite" and database:
            file = Path(database.partition("?")[0]).absolute()
            files += [file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]
        return (self.data_dir, *files)


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings from `path`, else from the file of PORTICO_CONFIG, else from the user's configuration folder.

    Variables of single settings precede the file. Settings that neither has get their defaults. Raises InvalidSettings that names
    the file, the path of the key or the variable, and the allowed values.
    """
    file = configuration_file(path, environ)
    if file is None:
        return parse({}, environ=environ)
    try:
        table = tomllib.loads(file.expanduser().read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidSettings(f"cannot read the configuration {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"{file} is not TOML: {error}") from error
    settings = parse(table, str(file), environ)
    settings._file = file.expanduser().absolute()
    return settings


def explicit_file(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the configuration file that `path` or PORTICO_CONFIG names; None if neither does."""
    return path or (Path(environ["PORTICO_CONFIG"]) if environ.get("PORTICO_CONFIG") else None)


def user_file() -> Path:
    """Return the configuration file in the user's configuration folder, which may be missing."""
    return user_config_path("portico", appauthor=False) / "config.toml"


def configuration_file(path: Path | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file that `load` reads, or None if it reads no file. A file that is named need not exist."""
    explicit = explicit_file(path, environ)
    if explicit is not None:
        return explicit
    file = user_file()
    return file if file.exists() else None


def parse(table: Mapping[str, Any], source: str = "the configuration", environ: Mapping[str, str] = {}) -> Settings:
    """Return the settings of a parsed TOML document, and of the variables of `environ`. Raises InvalidSettings."""
    merged, names = dict(table), dict[tuple[str, ...], str]()
    for path, name, value in _given(environ):
        names[path] = name
        section, *keys = path
        # What is no table is refused.
        if isinstance(of_file := merged.get(section, {}), dict):
            merged[section] = {**of_file, keys[0]: value} if keys else value
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        lines = []
        for item in error.errors(include_url=False):
            path = next((path for path in names if item["loc"][: len(path)] == path), tuple[str, ...]())
            place = ".".join(filter(None, [names.get(path), _path(item["loc"][len(path) :])]))
            lines.append(f"{place}: {_reason(item)}{' in JSON' if path and item['type'] in _TOML_MESSAGES else ''}")
        raise InvalidSettings(f"{source} cannot be used:\n" + "\n".join(f"  {line}" for line in lines)) from None


def setting_variables(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the variables that are settings and are not empty, with the path of each setting: `("server", "port")`.

    Raises InvalidSettings for a variable whose name is a misspelt one of Portico.
    """
    sections = [section for section in Settings.model_fields if section != "agents"]
    # The names of agents may have characters that those of variables have not.
    paths = [("agents",), *((section, key) for section in sections for key in _keys_at((section,)))]
    known = {_VARIABLE_NAMES.get(path, "PORTICO_" + "__".join(path).upper()): path for path in paths}
    given = sorted(name for name in environ if name.startswith("PORTICO_") and environ[name])
    if lines := [line for name in given if (line := _misspelt(name, [*known, *_OTHER_VARIABLES]))]:
        raise InvalidSettings("the environment cannot be used:\n" + "\n".join(f"  {line}" for line in lines))
    return {name: known[name] for name in given if name in known}


def _given(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield the path, the variable and the value of each setting of the environment; PORTICO_AGENTS has several."""
    for name, path in setting_variables(environ).items():
        value = _value(path, environ[name])
        if path == ("agents",) and isinstance(value, dict):
            yield from ((("agents", agent), f"{name}.{agent}", entry) for agent, entry in value.items())
        else:
            yield path, name, value


def _value(path: tuple[str, ...], text: str) -> Any:
    """Return the value of a variable: the text itself for a setting that is a text, else what it is as JSON."""
    kind: Any = Settings
    for key in path:
        kind = kind.model_fields[key].annotation
    if kind in (str, Path) or get_origin(kind) is Literal:
        return text
    try:
        return json.loads(text)
    except ValueError:
        # The text is of the wrong type, and refused by that.
        return text


_VARIABLE_NAMES: dict[tuple[str, ...], str] = {("server", "data_dir"): "PORTICO_DATA_DIR"}
_OTHER_VARIABLES = ("PORTICO_API_KEY", "PORTICO_CONFIG", "PORTICO_ENCRYPTION_KEY", "PORTICO_NODE_KEYS")
# Kubernetes gives them to containers beside a service of the name `portico`.
_OF_KUBERNETES = ("PORTICO_SERVICE_HOST", "PORTICO_SERVICE_PORT", "PORTICO_PORT")


def _misspelt(name: str, known: list[str]) -> str | None:
    """Return what is wrong with a variable's name; None if it is right, or seems to belong to another program."""
    if name in known or name.startswith(_OF_KUBERNETES):
        return None
    meant = "__" in name
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6 if meant else 0.9)
    if not (meant or close):
        return None
    return f"{name}: unknown variable; " + (
        f"did you mean {close[0]!r}?" if close else "those of settings are PORTICO_SECTION__KEY, such as PORTICO_SERVER__PORT"
    )


def _path(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc if part != "[key]")


def _reason(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        known = sorted(_keys_at(item["loc"][:-1]))
        close = difflib.get_close_matches(str(item["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(known)}"
        return f"unknown key; {hint}"
    if item["loc"] and item["loc"][-1] == "[key]":
        return "an agent's name is letters, digits, '.', '_' and '-', 64 at most, and starts with a letter or digit"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    return _TOML_MESSAGES.get(item["type"], str(item["msg"]).lower())


# TOML terms instead of those of pydantic.
_TOML_MESSAGES = {"model_type": "must be a table", "dict_type": "must be a table", "tuple_type": "must be an array"}


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in loc:
        if model is Settings and part == "agents":
            table = Rule if "policy" in loc else ListedMcpServer if "mcp_servers" in loc else AgentSettings
            return list(table.model_fields)
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        model = annotation
    return list(model.model_fields)

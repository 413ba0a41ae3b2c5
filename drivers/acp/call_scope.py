"""What a call of an ACP agent runs and which files it names: a grant of the call permits these and nothing else. No I/O."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PATH_FIELDS = ("file_path", "filePath", "filepath", "fileName", "path", "notebook_path", "dir_path", "absolute_path")
"""The names of paths in the inputs of the CLIs that are known to run behind an ACP adapter."""

_SHELL = re.compile(r"(?:(?:/usr)?/bin/)?(?:sh|bash|dash|zsh)")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallScope:
    """The command line that a call runs, and the absolute paths of the files that it names."""

    line: str | None = None
    paths: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.line is not None or bool(self.paths)


def scope_of(given: Mapping[str, Any], cwd: str) -> CallScope:
    """The scope of a call with this input. Relative paths are those of `cwd`; paths with `..` are left out."""
    command = given.get("command", given.get("cmd"))
    words = command if _is_words(command) else [command] if isinstance(command, str) else []
    try:
        line = _line([*words, *_args(given.get("args"))], whole=isinstance(command, str)) if words else None
        line = None if line is None else _with_surroundings(line, _env(given.get("env")), given.get("cwd"), cwd)
    except (TypeError, ValueError):
        # Not parameters of a program.
        line = None
    named = [given.get(name) for name in PATH_FIELDS]
    changes, paths = given.get("changes"), given.get("paths")
    named += [change.get("path") for change in changes if isinstance(change, dict)] if isinstance(changes, list) else []
    named += paths if isinstance(paths, list) else []
    found = (path_of(path, cwd) for path in named if isinstance(path, str))
    return CallScope(line, frozenset(path for path in found if path is not None))


def path_of(path: str, cwd: str) -> str | None:
    """The absolute form of a path. None for a path with `..`, which a symbolic link may lead elsewhere."""
    whole = posixpath.join(cwd, path)
    return None if ".." in whole.split("/") else posixpath.normpath(whole)


def terminal_line(params: Mapping[str, Any], cwd: str) -> str:
    """The whole command line of a `terminal/create`: its folder if that is not `cwd`, its environment, program and arguments.

    It is what a shell would be given to do the same. Raises ValueError for parameters of other types than the protocol's.
    """
    return _with_surroundings(_line(_words_of(params), whole=True, unwrap=False), _env(params.get("env")), params.get("cwd"), cwd)


def terminal_scope(params: Mapping[str, Any], cwd: str) -> CallScope:
    """The scope of a `terminal/create`. Raises ValueError for parameters of other types than the protocol's."""
    line = _line(_words_of(params), whole=True)
    return CallScope(_with_surroundings(line, _env(params.get("env")), params.get("cwd"), cwd))


def with_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """A call's input whose `command` or `cmd` is the whole command line, where `args` and `env` stand beside it."""
    args, env = given.get("args"), given.get("env")
    name = next((name for name in ("command", "cmd") if isinstance(given.get(name), str)), None)
    if name is None or not (args or env):
        return dict(given)
    if isinstance(args, str):
        line = f"{given[name]} {args}"
    else:
        words = [word if isinstance(word, str) else json.dumps(word) for word in args] if isinstance(args, list) else []
        line = _line([given[name], *words], whole=True, unwrap=False)
    try:
        line = _with_surroundings(line, _env(env), None, "")
    except (TypeError, ValueError):
        # Not an environment, or one of a form that is not known.
        line = f"export {shlex.quote(str(env))}; {line}"
    return {**given, name: line}


def _words_of(params: Mapping[str, Any]) -> list[str]:
    if not isinstance(params.get("command"), str):
        raise ValueError("command is not a string")
    return [params["command"], *_args(params.get("args"))]


def _line(words: Sequence[str], *, whole: bool, unwrap: bool = True) -> str:
    """The words as a command line. With `whole`, a single word is a line already."""
    if len(words) == 1 and whole:
        return words[0]
    if unwrap and len(words) == 3 and _SHELL.fullmatch(words[0]) and words[1] in ("-c", "-lc"):
        return words[2]
    return shlex.join(words)


def _with_surroundings(line: str, env: Iterable[tuple[str, str]], folder: Any, cwd: str) -> str:
    """The line with the environment and the folder that it runs in, where they are not those of the session."""
    before = [f"export {_assignment(name, value)}; " for name, value in env]
    if folder is not None and not isinstance(folder, str):
        raise ValueError("cwd is not a string")
    if folder and path_of(folder, cwd) != path_of(cwd, cwd):
        before.append(f"cd {shlex.quote(folder)} && ")
    return "".join([*before, line])


def _assignment(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}" if _NAME.fullmatch(name) else shlex.quote(f"{name}={value}")


def _args(args: Any) -> list[str]:
    if args is None:
        return []
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise ValueError("args is not a list of strings")
    return args


def _env(env: Any) -> list[tuple[str, str]]:
    """The variables of an object, or of a list of objects with `name` and `value`."""
    if env is None:
        return []
    if isinstance(env, dict):
        env = [{"name": name, "value": value} for name, value in env.items()]
    found = [(variable["name"], variable["value"]) for variable in env if isinstance(variable, dict)]
    if len(found) != len(env) or not all(isinstance(text, str) for pair in found for text in pair):
        raise ValueError("env is not a list of names and values")
    return found


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)

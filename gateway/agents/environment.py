"""The environment of agent processes: which variables of the gateway's own they get, and which values are secret."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

ALLOWED_ENV = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_*", "TZ", "TMPDIR", "TERM", "XDG_*",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
)  # fmt: skip
"""Variables of the gateway's environment that every agent gets. Its driver may name more; no other variable is passed on."""
LAUNCH_ENV = ("XDG_ACTIVATION_TOKEN", "XDG_SEAT*", "XDG_SESSION_*", "XDG_VTNR")
"""Those of them that name the launch or the desktop session of a program: another one is no reason to start agents anew."""
SECRET_NAMES = ("*KEY*", "*TOKEN*", "*SECRET*", "*PASSWORD*")


def process_environment(environ: Mapping[str, str], driver_patterns: Iterable[str], entry: Mapping[str, str]) -> dict[str, str]:
    """Return an agent's complete environment.

    `environ` is the gateway's own, `driver_patterns` are the variables that the driver needs (patterns of fnmatch), `entry` are
    those that the driver and the agent's entry in the configuration set, which have precedence. Variables of the gateway
    (`PORTICO_*`) are left out.
    """
    allowed = _any_of((*ALLOWED_ENV, *driver_patterns))
    kept = {name: value for name, value in environ.items() if not name.startswith("PORTICO_") and allowed.match(name)}
    return {**kept, **entry}


def same_environment(environment: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two environments of an agent are equal, but for variables that may differ with each launch of the gateway."""
    varying = _any_of(LAUNCH_ENV)
    first, second = ({name: value for name, value in one.items() if not varying.match(name)} for one in (environment, other))
    return first == second


@lru_cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of variables whose names mark them as secret."""
    return [value for name, value in environment.items() if is_named(name, SECRET_NAMES)]


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Whether a variable's name matches one of the patterns, whatever its case."""
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in patterns)

"""Valid and invalid requests generated from `/openapi.json`: none causes an internal error, and every response is documented."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import requests

from tests.conftest import write_config
from tests.support.daemon import KEY, Daemon, gateway_config
from tests.support.requests import create_session

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis import Case, GenerationMode, checks
    from schemathesis.schemas import APIOperation

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
CASES = {"short": (1, 1), "long": (7, 6)}
"""Cases of an operation with a body and of one without.

Generating a case takes ten times as long as sending it, so each case is sent in several ways.
"""
AT_LEAST = {"short": 150, "long": 1000}
"""Minimum number of requests of each mode."""
EARLIER = ("/session", "/meta", "/aap/v1", "/aap/v2")
"""Paths of the earlier versions of AAP, whose requests are those of version 3 in other shapes."""
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
Operation = APIOperation[Any, Any, Any, Any]


def _authorized(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Send the key with a case whose mutation is to leave it out, too."""
    request.headers.update(AUTHORIZED)
    return request


@dataclass
class Fuzz:
    """Sends cases to a gateway and counts the responses by status."""

    url: str
    session: str
    mode: GenerationMode
    cases: tuple[int, int]
    left_out: tuple[str, ...] = ()
    """Beginnings of paths to which nothing is sent."""
    answers: Counter[int] = field(default_factory=Counter)
    http: requests.Session = field(default_factory=requests.Session)

    def run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = self.http.get(f"{self.url}/openapi.json", headers=AUTHORIZED).json()
            for operation in (one for methods in document["paths"].values() for one in methods.values()):
                # It documents any status.
                del operation["responses"]["default"]
                for answer in operation["responses"].values():
                    # `itemSchema` describes the events, and `schema` what generated clients make of them.
                    answer.get("content", {}).get("text/event-stream", {}).pop("schema", None)
            found = [operation.ok() for operation in schemathesis.openapi.from_dict(document).get_all_operations()]
            # A stream without an end.
            for operation in found:
                if not operation.path.endswith("/updates") and not operation.path.startswith(self.left_out):
                    self._cases(operation, self.cases[0 if operation.body else 1])

    def _cases(self, operation: Operation, number: int) -> None:
        @settings(
            max_examples=number,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=self.mode))
        def one(case: Case) -> None:
            self._send(case)
            self._use_existing_names(case)
            self._send(case, auth=_authorized)
            if case.body:
                self._send(case, {"Content-Type": "text/plain"}, auth=_authorized)
                if isinstance(case.body, dict):
                    case.body["stream"] = "delta"
                    self._send(case, auth=_authorized)

        # An operation without parameters has no invalid cases.
        with suppress(Unsatisfiable, SkipTest):
            one()

    def _send(self, case: Case, headers: Mapping[str, str] | None = None, auth: Callable[..., Any] | None = None) -> None:
        if case.operation.path.endswith("/events"):
            # Without `until` the stream stays open for further events.
            case.query = {**(case.query or {}), "until": "turn_stop"}
        if case.operation.path.endswith("/updates"):
            # The stream never ends, and has no parameters.
            return
        headers = {**AUTHORIZED, **(headers or {})}
        if case.operation.path.endswith("/log"):
            # Not as a stream, which does not end either.
            headers["Accept"] = "application/json"
        answer = case.call(base_url=self.url, session=self.http, headers=headers, auth=auth, timeout=60)
        self.answers[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    def _use_existing_names(self, case: Case) -> None:
        """Replace generated names, which mostly do not exist, by an existing session, agent and driver."""
        if "session_id" in case.path_parameters and case.operation.method != "delete":
            case.path_parameters["session_id"] = self.session
        if "agent" in case.path_parameters:
            case.path_parameters["agent"] = "echo"
        if isinstance(case.body, dict):
            if isinstance(case.body.get("agent"), dict):
                case.body["agent"]["name"] = "echo"
            for name in ("driver", "model"):
                if name in case.body:
                    case.body[name] = "echo"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mode", "length"),
    [
        # Valid requests are those of the examples, in test_openapi.py.
        (GenerationMode.NEGATIVE, "short"),
        *(pytest.param(mode, "long", marks=pytest.mark.long) for mode in GenerationMode),
    ],
)
async def test_generated_requests_get_documented_responses(
    daemon: Daemon, tmp_path: Path, mode: GenerationMode, length: str
) -> None:
    write_config(tmp_path, gateway_config(tmp_path, limits={"sleep_after": 0.5, "live_agents": 8}))
    await daemon.start()
    async with daemon.client() as client:
        session = (await create_session(client, "echo"))["sessionId"]
        fuzz = Fuzz(daemon.url, session, mode, CASES[length], EARLIER if length == "short" else ())
    await asyncio.to_thread(fuzz.run)
    assert fuzz.answers.total() >= AT_LEAST[length], fuzz.answers
    assert not [status for status in fuzz.answers if status >= 500 and status not in (501, 503)]
    # Some requests have created sessions and run turns.
    assert fuzz.answers[201] + fuzz.answers[200] > fuzz.answers.total() / 8, fuzz.answers
    assert await daemon.stop() == 0
    assert b"Traceback" not in daemon.stderr

"""Pages in a real browser: pages of other origins are rejected, pages of configured origins can stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.app import Gateway
from gateway.config import parse
from gateway.security.redaction import Redactor
from tests.real.browser import browsing, find_browser, page
from tests.support.daemon import KEY, gateway_config, run_gateway, serve_gateway
from tests.support.requests import session_body

WriteScenario = Callable[..., str]

# Each attempt reports its result: "read" with the text if the page can read it, otherwise "failed".
ATTACK = """
const gateway = %(gateway)s, body = %(body)s, task = %(task)s
const read = async (path, options) => {
  try { return 'read ' + await (await fetch(gateway + path, options)).text() } catch (error) { return 'failed' }
}
const element = (name, attribute, path) => new Promise(done => {
  const made = document.createElement(name)
  made.onload = () => done('loaded')
  made.onerror = () => done('failed')
  made[attribute] = gateway + path
  document.body.append(made)
})
const socket = path => new Promise(done => {
  const made = new WebSocket(gateway.replace('http', 'ws') + path)
  made.onopen = () => done('opened')
  made.onerror = () => done('failed')
})
const events = path => new Promise(done => {
  const made = new EventSource(gateway + path)
  made.onopen = () => done('opened')
  made.onerror = () => { made.close(); done('failed') }
})
const form = (path, text) => new Promise(done => {
  const frame = document.createElement('iframe'), made = document.createElement('form'), field = document.createElement('input')
  frame.name = 'target'
  frame.onload = () => done('sent')
  Object.assign(made, {method: 'post', action: gateway + path, enctype: 'text/plain', target: 'target'})
  // A form sends NAME=VALUE; this one is JSON all the same.
  Object.assign(field, {name: text.slice(0, -2) + ', "x": "', value: '"}'})
  made.append(field)
  document.body.append(frame, made)
  made.submit()
})
const json = {'Content-Type': 'application/json'}
report({
  meta: await read('/meta'),
  health: await read('/healthz'),
  sessions: await read('/sessions'),
  put: await read('/session', {method: 'PUT', headers: json, body}),
  post: await read('/v1/execute', {method: 'POST', headers: json, body: task}),
  delete: await read('/session/x', {method: 'DELETE'}),
  text: await read('/v1/execute', {method: 'POST', body: task}),
  opaque: await read('/v1/execute', {method: 'POST', mode: 'no-cors', body: task}),
  beacon: String(navigator.sendBeacon(gateway + '/v1/execute', task)),
  form: await form('/v1/execute', task),
  image: await element('img', 'src', '/meta'),
  script: await element('script', 'src', '/sessions'),
  socket: await socket('/acp'),
  events: await events('/sessions'),
})
"""

USE = """
const gateway = %(gateway)s, key = {Authorization: 'Bearer ' + %(key)s}
const json = {...key, 'Content-Type': 'application/json', 'Idempotency-Key': 'one'}
const found = {meta: (await (await fetch(gateway + '/meta')).json()).agents.map(agent => agent.name)}
const refused = await fetch(gateway + '/sessions')
found.refused = [refused.status, refused.headers.get('www-authenticate'), (await refused.json()).error]
const answer = await fetch(gateway + '/session', {method: 'PUT', headers: json, body: %(body)s})
const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
let seen = ''
while (!seen.includes('first')) seen += (await reader.read()).value
const session = gateway + '/session/' + JSON.parse(seen.match(/data: (.*)/)[1]).sessionId
found.state = (await (await fetch(session, {headers: {...key, 'Last-Event-ID': '0'}})).json())['x-portico'].state
found.deleted = (await fetch(session, {method: 'DELETE', headers: key})).status
for (let next; !(next = await reader.read()).done;) seen += next.value
found.end = seen.slice(-200)
report(found)
"""


@pytest.fixture
def browser() -> str:
    """The path of a browser, which `make test-all` installs in CI; without one the test is skipped."""
    found = find_browser()
    if found is None:
        pytest.skip("no chromium or chrome on PATH; on Debian: apt-get install chromium-headless-shell")
    return found


def filled(script: str, **values: Any) -> str:
    return script % {name: json.dumps(value) for name, value in values.items()}


def bodies(**fields: Any) -> dict[str, str]:
    return {"body": json.dumps(session_body("echo", **fields)), "task": '{"driver": "echo", "task": "x"}'}


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.test"])
async def test_a_page_of_another_origin_is_rejected(browser: str, tmp_path: Path, host: str) -> None:
    """The gateway has no key, and another origin is allowed."""
    settings = parse(gateway_config(tmp_path, server={"origins": ["http://localhost:*"]}))
    async with serve_gateway(Gateway(settings, (), Redactor())) as portico:
        begun: list[str] = []
        portico.gateway.store.processes.started = lambda marker, pid, created: _record(begun, marker)  # type: ignore[method-assign]
        script = filled(ATTACK, gateway=portico.url, **bodies())
        names = [f"--host-resolver-rules=MAP {host} 127.0.0.1"] if host != "127.0.0.1" else []
        async with page(script) as pages, browsing(browser, tmp_path / "profile", pages.url(host), names):
            found = await asyncio.wait_for(pages.found, 60)
        # The page cannot read the result of these; that they had no effect is asserted below.
        assert {name: found.pop(name) for name in ("beacon", "form")} == {"beacon": "true", "form": "sent"}
        assert found.pop("opaque") in ("read ", "failed")
        assert set(found.values()) == {"failed"}, found
        assert (await portico.client.get("/sessions")).json() == {"sessions": []}
        assert begun == [], "no agent was started"


async def test_the_same_page_of_an_allowed_origin_is_accepted(browser: str, tmp_path: Path) -> None:
    """Shows that the attempts of the page work if its origin is allowed. Requests without CORS still have no effect."""
    settings = parse(gateway_config(tmp_path, server={"origins": ["http://localhost:*"]}))
    async with serve_gateway(Gateway(settings, (), Redactor())) as portico:
        script = filled(ATTACK, gateway=portico.url, **bodies())
        async with page(script) as pages, browsing(browser, tmp_path / "profile", pages.url("localhost")):
            found = await asyncio.wait_for(pages.found, 60)
        assert found["meta"].startswith('read {"version"')
        assert "end_turn" in found["put"]
        assert "session_end" in found["post"]
        assert "application/json" in found["text"]
        assert [found[name] for name in ("image", "script", "socket", "events")] == ["failed"] * 4
        assert len((await portico.client.get("/sessions")).json()["sessions"]) == 1


async def _record(begun: list[str], marker: str) -> None:
    begun.append(marker)


async def test_dns_rebinding_is_rejected(browser: str, tmp_path: Path) -> None:
    """To the browser, the gateway has the origin of the attacker's page."""
    settings = parse(gateway_config(tmp_path))
    async with serve_gateway(Gateway(settings, (), Redactor())) as portico:
        for host, expected in (("evil.test", "server.hosts"), ("localhost", "agents")):
            flags = ["--host-resolver-rules=MAP evil.test 127.0.0.1", "--dump-dom"]
            url = f"http://{host}:{urlsplit(portico.url).port}/meta"
            async with browsing(browser, tmp_path / host, url, flags) as process:
                assert process.stdout is not None
                dom = (await asyncio.wait_for(process.stdout.read(), 60)).decode()
            assert expected in dom


async def test_a_page_of_an_allowed_origin_can_stream(browser: str, tmp_path: Path, write_scenario: WriteScenario) -> None:
    body = session_body(options={"scenario": write_scenario([{"text": "first"}, {"hang": True}])}, stream="delta")
    async with run_gateway(gateway_config(tmp_path, server={"origins": ["http://localhost:*"]})) as portico:
        script = filled(USE, gateway=portico.url, key=KEY, body=json.dumps(body))
        async with page(script) as pages, browsing(browser, tmp_path / "profile", pages.url("localhost")):
            found = await asyncio.wait_for(pages.found, 60)
    assert {"echo", "script"} <= set(found["meta"])
    status, scheme, error = found["refused"]
    assert (status, scheme) == (401, "Bearer")
    assert "portico key" in error
    assert (found["state"], found["deleted"]) == ("running", 204)
    assert "turn_stop" in found["end"]

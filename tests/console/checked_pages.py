"""Windows of a browser that record what no page of the console may cause: errors, violations of its policy, foreign requests."""

from __future__ import annotations

import re
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, StorageState

from tests.support.daemon import KEY

TOKEN = "portico.signIn"
"""The name under which the page keeps the token of its sign-in."""

REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => console.error(
  `policy: ${event.violatedDirective} by ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber} ${event.sample}`));
"""


class Windows:
    """Opens windows of one user of a browser, who is signed in.

    `found` are the errors and foreign requests of all of them. A test names those that it causes by `expect`.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser, self.url = browser, url
        self._contexts: list[BrowserContext] = []
        self._expected: list[re.Pattern[str]] = []
        self.found: list[str] = []

    def context(self, key: str | None = KEY, **options: Any) -> BrowserContext:
        """Return a new user of the browser, who is signed in by the key; nobody is signed in without one.

        `options` are those of Playwright, such as `viewport` and `color_scheme`.
        """
        if key is not None:
            options["storage_state"] = self._signed_in(key)
        context = self._browser.new_context(base_url=self.url, **options)
        context.set_default_timeout(30_000)
        context.add_init_script(REPORT_VIOLATIONS)
        context.on("page", self._watch)
        context.on("request", self._check_host)
        self._contexts.append(context)
        return context

    def open(self, path: str = "/console/", context: BrowserContext | None = None, **options: Any) -> Page:
        """Open a window of the console, by default of a new user with these options of `context`."""
        page = (context or self.context(**options)).new_page()
        page.goto(path)
        return page

    def token(self, context: BrowserContext) -> str:
        """Return the token of the sign-in of a user, who has a window open."""
        return str(context.pages[0].evaluate(f"localStorage.getItem('{TOKEN}')"))

    def expect(self, pattern: str) -> None:
        """Do not count problems that match the pattern."""
        self._expected.append(re.compile(pattern))

    @property
    def problems(self) -> list[str]:
        """What was found and not expected."""
        return [problem for problem in self.found if not any(pattern.search(problem) for pattern in self._expected)]

    def close(self) -> None:
        """Close all windows."""
        for context in self._contexts:
            context.close()

    def _signed_in(self, key: str) -> StorageState:
        """What a browser keeps of a new sign-in."""
        answer = httpx.post(f"{self.url}/v1/sign-ins", json={"key": key}, trust_env=False, timeout=60)
        assert answer.status_code == 201, answer.text
        [(name, value)] = answer.cookies.items()
        host = urlsplit(self.url).hostname or ""
        cookie = {"name": name, "value": value, "domain": host, "path": "/", "httpOnly": True, "sameSite": "Strict"}
        kept = {"origin": self.url, "localStorage": [{"name": TOKEN, "value": answer.json()["token"]}]}
        return cast(StorageState, {"cookies": [cookie], "origins": [kept]})

    def _watch(self, page: Page) -> None:
        page.on("console", self._record)
        page.on("pageerror", lambda error: self.found.append(f"uncaught: {error.stack or error}"))
        page.on("crash", lambda: self.found.append("the page has crashed"))

    def _record(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            where = message.location
            self.found.append(f"{message.type}: {message.text} ({where.get('url')}:{where.get('lineNumber')})")

    def _check_host(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob"):
            return
        if parts.netloc != urlsplit(self.url).netloc:
            self.found.append(f"a request to another host: {request.method} {request.url}")

"""A web server of somebody else on this machine: its pages attack the console, and it notices every request that it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class OtherSite:
    """Serves the same page at every path. `requests` are the lines of the requests, `cookies` the headers of that name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.page = "<!doctype html><title>other</title>"
        self.requests: list[str] = []
        self.cookies: list[str] = []

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/"


@contextmanager
def other_site() -> Iterator[OtherSite]:
    """Serve on a free port of 127.0.0.1, under any host name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.requests.append(self.requestline)
            site.cookies.extend(self.headers.get_all("cookie") or ())
            body = site.page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = OtherSite(server.server_port)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield site
    finally:
        server.shutdown()
        serving.join()
        server.server_close()

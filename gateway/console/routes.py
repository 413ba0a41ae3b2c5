"""The paths `/console` and below: the page for every one of them, and the files that it loads. No key is needed for them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from drivers.runtime.file_threads import in_thread
from gateway.console.static_files import StaticFile, StaticFiles

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""What an agent says cannot become a script, load anything from elsewhere or send anything there, even if it is shown wrongly."""
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    # A browser asks each time whether the file has changed, which takes one request without a body.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}
_METHODS = ["GET", "HEAD"]


def router() -> APIRouter:
    """Return the routes of the console."""
    routes = APIRouter()
    files = StaticFiles()

    async def respond(request: Request, path: str) -> Response:
        file = await in_thread(files.find, path)
        if file is None:
            raise HTTPException(404)
        return _response(request, file)

    @routes.api_route("/", methods=_METHODS, include_in_schema=False)
    async def root(request: Request) -> Response:
        """Lead browsers to the console. Programs get 404 as without it."""
        if "text/html" not in request.headers.get("accept", ""):
            raise HTTPException(404)
        return RedirectResponse("/console/", 307, {"Vary": "Accept"})

    @routes.api_route("/console", methods=_METHODS, include_in_schema=False)
    async def without_slash() -> Response:
        """Lead to the path below which the page's own paths are."""
        return RedirectResponse("/console/", 307)

    @routes.api_route("/console/assets/{path:path}", methods=_METHODS, include_in_schema=False)
    async def asset(path: str, request: Request) -> Response:
        """Return a file of the page."""
        return await respond(request, path)

    @routes.api_route("/console/{path:path}", methods=_METHODS, include_in_schema=False)
    async def page(path: str, request: Request) -> Response:
        """Return the page, which shows what its path names."""
        return await respond(request, "index.html")

    return routes


def _response(request: Request, file: StaticFile) -> Response:
    zipped = file.compressed is not None and "gzip" in request.headers.get("accept-encoding", "")
    etag = f'"{file.etag}-gzip"' if zipped else f'"{file.etag}"'
    headers = {**_HEADERS, "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(None, 304, headers)
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return Response(file.compressed if zipped else file.content, 200, headers, file.media_type)

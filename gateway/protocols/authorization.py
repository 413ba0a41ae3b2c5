"""What authenticates a request: its Authorization header, or else the sign-in of the console's page that sent it."""

from __future__ import annotations

from starlette.datastructures import Headers

from gateway.security.authentication import Authorization
from gateway.security.sign_ins import OfferedSignIn

SIGN_IN_HEADER = "x-portico-sign-in"
"""The header with the token of a sign-in."""


def authorization(headers: Headers) -> Authorization:
    """Return the Authorization header of a request; without one, the secrets of the sign-in that it names; None without either.

    A request with the token of a sign-in that is not from the page itself, by what the browser says, has wrong secrets.
    """
    given = headers.get("authorization")
    return given if given is not None else _sign_in(headers)


def _sign_in(headers: Headers) -> OfferedSignIn | None:
    token = headers.get(SIGN_IN_HEADER)
    if token is None:
        return None
    return OfferedSignIn(_cookies(headers, cookie_name(headers)) if is_from_own_page(headers) else (), token)


def is_from_own_page(headers: Headers) -> bool:
    """Whether a request is from a page of this server's own origin, or from a program that is no browser."""
    origins, host = headers.getlist("origin"), headers.get("host", "").lower()
    own = not origins or (len(origins) == 1 and origins[0] in (f"http://{host}", f"https://{host}"))
    return own and headers.get("sec-fetch-site", "same-origin") == "same-origin"


def cookie_name(headers: Headers) -> str:
    """Return the name of the cookie, with the port by which the browser knows the server: ports of a host share their cookies."""
    port = headers.get("host", "").rpartition("]")[2].rpartition(":")[2]
    return f"portico_sign_in_{port if port.isdigit() else 'default'}"


def _cookies(headers: Headers, name: str) -> tuple[str, ...]:
    """Return the different values of the cookies of a name."""
    pairs = (pair.strip().partition("=") for header in headers.getlist("cookie") for pair in header.split(";"))
    return tuple(dict.fromkeys(value for found, _, value in pairs if found == name))

"""What every request to the page must be like, and what every answer says to the browser."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from aiohttp import hdrs, web

from smb3server.net.host_lists import is_address

HEADERS: Final = {
    "Server": "smb3server",
    # Nothing from elsewhere, nothing inline: a name of a file or user that contains markup can do nothing.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
TRANSPORT_SECURITY: Final = "max-age=31536000"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Guard:
    """The middleware of the page."""

    def __init__(self, names: Collection[str], admits: Callable[[str], bool], secure: bool) -> None:
        """``names``: host names by which browsers may ask. ``admits``: whether an address may use the server at all.
        ``secure``: whether it is served by TLS.
        """
        self._names = {name.casefold() for name in names}
        self._admits = admits
        self._secure = secure

    def add_headers(self, response: web.StreamResponse) -> None:
        """Add to a response what all of them say."""
        response.headers.update(HEADERS)
        if self._secure:
            response.headers["Strict-Transport-Security"] = TRANSPORT_SECURITY

    @web.middleware
    async def serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what no browser on this page sends, then serve the request."""
        self._check_sender(request)
        if request.method == hdrs.METH_POST:
            self._check_change(request)
        return await handler(request)

    def _check_sender(self, request: web.Request) -> None:
        if not self._admits(request.remote or ""):
            raise web.HTTPForbidden(text="This address may not use the server (hosts_allow, hosts_deny).")
        # Another site could have its own name lead to this server (DNS rebinding), and its pages could then read it.
        try:
            host = request.url.host or ""
        except ValueError as error:
            raise web.HTTPBadRequest(text="The host's name is none.") from error
        if not is_address(host) and host.casefold() not in self._names:
            raise web.HTTPMisdirectedRequest(text=f"{host} is not a name of this server: add it to names in [web].")

    @staticmethod
    def _check_change(request: web.Request) -> None:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="JSON is needed.")
        origin = request.headers.get(hdrs.ORIGIN)
        if origin is not None and origin.partition("://")[2] != request.host:
            raise web.HTTPForbidden(text="The request comes from another site.")

"""The files of the console: few, small, read once, and the same for everybody.

A page may load and ask nothing but what comes from this server, and run no script but files of it.
The one exception is the import map, which browsers take only from the page itself: the policy names
its digest.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import ringdove
from ringdove.frontends.exchange import HttpResponse, text_response

if TYPE_CHECKING:
    from ringdove.frontends.exchange import HttpRequest

#: Where the files are: below `console` of the package.
_ROOT = Path(ringdove.__file__).parent / "console"

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".md": b"text/plain; charset=utf-8",
}

_INLINE_SCRIPT = re.compile(rb"<script(?![^>]* src=)[^>]*>(.*?)</script>", re.DOTALL)


class _File(NamedTuple):
    body: bytes
    etag: bytes
    kind: bytes


def respond(request: HttpRequest) -> HttpResponse:
    """The file that a request names; below /console/."""
    if request.method not in ("GET", "HEAD"):
        return text_response(405, "Only GET.", ((b"allow", b"GET, HEAD"),))
    if request.path == "/console":
        return HttpResponse(308, b"", ((b"location", b"/console/"),))
    name = request.path.removeprefix("/console/") or "index.html"
    files, protection = _load()
    found = files.get(name)
    if found is None:
        return text_response(404, "The console has no such file; it begins at /console/.")
    headers = ((b"content-type", found.kind), (b"etag", found.etag))
    if found.etag in request.headers.get(b"if-none-match", b""):
        return HttpResponse(304, b"", headers, protection)
    return HttpResponse(200, found.body, headers, protection)


@lru_cache(maxsize=1)
def _load() -> tuple[dict[str, _File], tuple[tuple[bytes, bytes], ...]]:
    """Every file by its name, and what browsers are told to beware of."""
    files = {}
    for path in sorted(_ROOT.rglob("*")):
        if path.suffix in _TYPES and path.is_file():
            body = path.read_bytes()
            etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
            files[path.relative_to(_ROOT).as_posix()] = _File(body, etag, _TYPES[path.suffix])
    return files, _protection(files["index.html"].body)


def _protection(page: bytes) -> tuple[tuple[bytes, bytes], ...]:
    digests = [
        base64.b64encode(hashlib.sha256(script).digest()).decode()
        for script in _INLINE_SCRIPT.findall(page)
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src 'self' {allowed}; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),
    )

"""The page as it is sent: one file, and headers that forbid everything but its own style and script."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources


@cache
def page() -> bytes:
    """Return the page."""
    return (resources.files(__package__) / "page.html").read_bytes()


def _hashes(tag: str) -> str:
    """Return CSP sources for the content of each *tag* of the page."""
    contents = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page(), re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


SECURITY_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; connect-src 'self';"
        " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

"""User names and passwords in URLs, which no message and no file of a run's circumstances may show."""

from __future__ import annotations

import re

_IN_URL = re.compile(r"([a-z][a-z0-9+.-]*://)[^\s/?#@\"'<>]*@", re.IGNORECASE)
_IN_ENCODED_URL = re.compile(r"(%3A%2F%2F)(?:(?!%2F|%3F|%23|%40)[^\s/])*%40", re.IGNORECASE)
"""As in the name of a file that is named after its URL."""


def hide_credentials(text: str) -> str:
    """`text` with the URLs in it as they are without user name and password.

    >>> hide_credentials("can't read ftp://user:secret@example.com/a.txt.")
    "can't read ftp://example.com/a.txt."
    """
    return _IN_ENCODED_URL.sub(r"\1", _IN_URL.sub(r"\1", text))

"""User names and passwords in URLs: taken out where a URL is read, and where a redirect names one.

Whoever put them into a list did not mean them for a corpus, a log, or a server.
"""

from __future__ import annotations

import re
from typing import Any

from webtext_prep.urls.urls import REPLACEMENT, host_of

# Browsers take any number of slashes of either kind after http and https, so that much is taken for the beginning.
_CREDENTIALS = re.compile(r"^(\s*(?:https?:[/\\]*|(?:[a-z][a-z0-9+.-]*:)?[/\\]{2,}))[^/\\?#]*@", re.IGNORECASE)
# A password with a slash, a question mark or a hash in it: what looks like a port is no number.
_ODD_CREDENTIALS = re.compile(r"^\s*https?:[/\\]*[^/\\?#@\[]*:(?!\d*(?:[/\\?#]|$)).*@", re.IGNORECASE | re.DOTALL)
_AT_SIGNS = ("@", "\uff20", "\ufe6b", "%40")
_URL_WITH_CREDENTIALS = re.compile(r"^(\s*[a-z][a-z0-9+.-]*:[/\\]{2,})[^/\\?#\s]*@", re.IGNORECASE)
_HIDDEN = "(hidden)@"


def without_credentials(url: str) -> str:
    """`url` without user name and password.

    Whoever put them into a list did not mean them for a corpus, a log, or a server: they are taken out where a URL is
    read, and where a redirect names one.

    >>> without_credentials("http://user:secret@example.com/~a@b?c=d@e")
    'http://example.com/~a@b?c=d@e'

    A web address that is none, as its password is not escaped, stays none.

    >>> without_credentials("http://user:sec/ret@example.com/")
    '(hidden)@example.com/'
    """
    if "@" not in url:
        return url
    bare = _CREDENTIALS.sub(r"\1", url)
    return _ODD_CREDENTIALS.sub(_HIDDEN, bare) if "@" in bare else bare


def without_any_credentials(url: str) -> str:
    """As `without_credentials`, for a line of a list: where it is no web address, what may be credentials goes, too.

    It stays no web address.

    >>> without_any_credentials("- user:secret@example.com/a")
    '(hidden)@example.com/a'
    """
    if url.isascii() and "@" not in url and "%40" not in url:
        return url
    bare = without_credentials(url)
    end = max(place + len(sign) if (place := bare.rfind(sign)) >= 0 else 0 for sign in _AT_SIGNS)
    if ":" not in bare[:end]:
        return bare
    if host_of(bare):
        return bare
    rest = bare[end:]
    # Bytes that were not UTF-8 are the reason to drop it, wherever they were.
    lost = REPLACEMENT if REPLACEMENT in bare and REPLACEMENT not in rest else ""
    return f"{lost}{_HIDDEN}{rest}"


def clean_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Take user names and passwords out of the values that are URLs, at any depth; changes and returns `metadata`.

    >>> clean_metadata({"link": "ftp://user:secret@example.com/", "by": "a@example.com"})
    {'link': 'ftp://example.com/', 'by': 'a@example.com'}
    """
    todo: list[Any] = [metadata]
    while todo:
        holder = todo.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, str):
                if "@" in value:
                    holder[key] = _URL_WITH_CREDENTIALS.sub(r"\1", value)
            elif isinstance(value, dict | list):
                todo.append(value)
    return metadata

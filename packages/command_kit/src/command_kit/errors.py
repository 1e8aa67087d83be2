"""Errors that a user can read: one sentence, an exit code, no traceback.

Each package hangs its own tree under `CommandError` (`WebtextError`, `Gpt2Error`, ...), so that a caller can catch
one package's failures, or all of them. A message says what was found, where, and what to do.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any


class CommandError(Exception):
    """A failure that its message explains; the command prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(CommandError):
    """Bad usage or bad input: what the user gave has to change before the command can work."""

    exit_code = 2


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be."""
    return next(iter(difflib.get_close_matches(word, list(known), 1)), None)


def meant(word: str, known: Iterable[str]) -> str:
    """A question to stand before the list of what is known; nothing where no known word is near.

    >>> meant("cleen", ["blacklist", "clean"])
    'did you mean clean? '
    """
    near = nearest(word, known)
    return "" if near is None else f"did you mean {near}? "


_IN_URL = re.compile(r"([a-z][a-z0-9+.-]*://)[^\s/?#@\"'<>]*@", re.IGNORECASE)
_ODD = re.compile(r"(//)[^\s/?#@\[\"'<>]{0,256}:(?!\d{0,9}(?:[/?#\s.:]|$))[^\s\"'<>]{0,256}@")
"""The pattern of credentials that are not escaped: a password with a slash, a question mark or a hash in it."""
_BARE = re.compile(r"(?<![^\s\"'<(=])[^\s/:@\"'<>(=]{1,256}:(?!//)[^\s@\"'<>]{1,256}@(?=[^\s@])")
"""The pattern of credentials in front of a host without a protocol."""
_SIGNED = re.compile(
    r"([?&;](?:[\w.-]{0,40}(?:token|signature|secret|passw|credential|api[_-]?key|access[_-]?key|auth)[\w.-]{0,40}"
    r"|sig|key|pwd|pass)=)[^\s&;#:\"'<>]+",
    re.IGNORECASE,
)
"""The pattern of parameters by which whoever knows a URL may have what it names: `X-Amz-Signature`, `sig`, `token`."""
_IN_ENCODED_URL = re.compile(r"(%3A%2F%2F)(?:(?!%2F|%3F|%23|%40)[^\s/])*%40", re.IGNORECASE)
"""The pattern of credentials in the name of a file that is named after its URL."""


def hide_credentials(text: str) -> str:
    """`text` with the URLs in it as they are without user name, password, and parameters that sign them.

    >>> hide_credentials("can't read ftp://user:secret@example.com/a.txt?sig=abc&page=2")
    "can't read ftp://example.com/a.txt?sig=(hidden)&page=2"
    """
    if "@" in text:
        text = _BARE.sub("", _ODD.sub(r"\1", _IN_URL.sub(r"\1", text)))
    text = _SIGNED.sub(r"\1(hidden)", text) if "=" in text else text
    return _IN_ENCODED_URL.sub(r"\1", text) if "%40" in text else text


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for a text that is no JSON, or nested deeper than Python can follow.

    >>> parse_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None

"""The metadata at the beginning of a Markdown file, as blogs and documentation have it: YAML or TOML between two lines.

    ---                 or  +++
    title: On whales        title = "On whales"
    ---                     +++

It is metadata only if all of it is: a horizontal rule (`---`) at the beginning of a text leaves the text as it is.
YAML's references are refused, by which a few lines grow to gigabytes, and so is deep nesting.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec

MOST_CHARACTERS = 64 << 10
"""A longer front matter is taken for text."""
MOST_NESTED = 32
"""Deeper YAML is taken for text: the time to read it grows with the square of its depth, and the stack with it."""
_DELIMITED = re.compile(r"(---|\+\+\+)[ \t]*\r?\n")


def split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The metadata at the beginning of `text`, and the text behind it; no metadata and all of the text if it has none.

    >>> split_front_matter("+++\\nn = 1\\n+++\\n\\nText.")
    ({'n': 1}, 'Text.')
    """
    begin = _DELIMITED.match(text)
    if begin is None:
        return {}, text
    # YAML may also end as a document does.
    ends = r"(?:---|\.\.\.)" if begin[1] == "---" else r"\+\+\+"
    end = re.compile(rf"^{ends}[ \t]*(?:\r?\n|\Z)", re.MULTILINE).search(text, begin.end(), MOST_CHARACTERS)
    if end is None:
        return {}, text
    found = _parsed(text[begin.end() : end.start()], is_yaml=begin[1] == "---")
    return (found, text[end.end() :].lstrip("\r\n")) if found else ({}, text)


def _parsed(text: str, *, is_yaml: bool) -> dict[str, Any]:
    """The metadata as JSON-like values, or none where it is not a table of names and values."""
    try:
        found = _load_yaml(text) if is_yaml else tomllib.loads(text)
        plain = msgspec.to_builtins(found, str_keys=True)
        msgspec.json.encode(plain)  # a number may be larger than JSON's
    except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _load_yaml(text: str) -> Any:
    """What YAML says, or None where it is nested deep or refers to itself: found before anything is made of it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MOST_NESTED or isinstance(event, yaml.AliasEvent):
                return None
        return yaml.load(text, loader)  # noqa: S506 - both of them are safe loaders
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

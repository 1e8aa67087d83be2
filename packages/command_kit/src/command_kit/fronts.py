"""Advice in words that its reader can type: a command that a pipeline runs names the pipeline's flags, not its own.

A message says "give another --output, or --restart". Whoever started a pipeline has neither: the program in front of
the command, which has flags of its own, says in an environment variable what stands there for each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from command_kit.json_text import parse_json

WORDS = "COMMAND_FLAGS_IN_WORDS"
"""Environment variable: a JSON object, a command's flag -> what to type instead. What ends in `=` takes a value."""

_VALUE = r"=\w[\w-]*| [A-Z][A-Z|.:]*\b(?![a-z])| -?\d[\w.]*\b| (?!is\b)[\w.-]+(?= is | needs |: )| \S*/\S*"
_FLAG = re.compile(rf"(?<![\w/-])(--[a-z][a-z0-9-]*)({_VALUE})?")
"""A flag, with its value, the placeholder of one, or a path."""


def words_of_front() -> dict[str, str]:
    """What the program in front of this command says for its flags; empty if there is none."""
    return dict(parse_json(os.environ.get(WORDS, "{}")))


def in_words(sentence: str, words: Mapping[str, str] | None = None) -> str:
    """`sentence` with each flag that `words` knows replaced, by default in the words of the program in front.

    What stands between backquotes is a command to give by hand, and a flag with a path repeats what was given: both
    stay as they are.

    >>> in_words("give another --output, or --restart", {"--output": "--folder", "--restart": "--restart clean"})
    'give another --folder, or --restart clean'
    >>> in_words("give --state DIR, or --fix=yes", {"--state": "--set clean.state=", "--fix": "--set clean.fix="})
    'give --set clean.state=DIR, or --set clean.fix=yes'
    >>> in_words("--fix maybe is not known: leave out --fix", {"--fix": "--set clean.fix="})
    '--set clean.fix=maybe is not known: leave out --set clean.fix=VALUE'
    """
    known = words_of_front() if words is None else words

    def said(found: re.Match[str]) -> str:
        flag, value = found[1], found[2] or ""
        if flag not in known or "/" in value:
            return found[0]
        return known[flag] + (value[1:] or "VALUE" if known[flag].endswith("=") else value)

    parts = sentence.split("`")
    parts[::2] = [_FLAG.sub(said, part) for part in parts[::2]]
    return "`".join(parts)

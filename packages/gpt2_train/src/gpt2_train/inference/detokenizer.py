"""Token ids to text as they come: characters whose bytes are split over tokens, and strings at which a text stops."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from indexed_tokens import Tokenizer


class Detokenizer:
    """Token ids to text: the bytes of a character are held back until it is whole.

    What does not make valid UTF-8 becomes U+FFFD, as `Tokenizer.decode` has it: all pieces together are its text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def close(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)


class HasText(Protocol):
    """Anything with a text, of which a shorter copy can be made."""

    @property
    def text(self) -> str: ...


Part = TypeVar("Part", bound=HasText)


class StopStrings(Generic[Part]):
    """Holds back what may be the beginning of a stop string, and cuts the text before the one that is complete first.

    A text comes as parts, dataclasses with a `text` (tokens), and leaves as whole parts, so that what is known of a
    token arrives together with its text. Which string it is does not depend on how the text is divided: the one that
    ends first, and of several the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Part] = []

    def add(self, part: Part) -> tuple[list[Part], bool]:
        """(the parts that are decided now, whether a stop string came, before which the last of them is cut)."""
        self._held.append(part)
        text = "".join(held.text for held in self._held)
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            return self._cut(min(found)[1]), True
        return self._release(self._undecided(text)), False

    def close(self) -> list[Part]:
        """What is still held back, at the end of a text."""
        rest, self._held = self._held, []
        return rest

    def _undecided(self, text: str) -> int:
        """Where the longest end of `text` begins that is the beginning of a stop string."""
        longest = max((len(stop) for stop in self._stops), default=0)
        places = range(max(0, len(text) - longest + 1), len(text))
        return next((at for at in places if any(stop.startswith(text[at:]) for stop in self._stops)), len(text))

    def _release(self, end: int) -> list[Part]:
        """The parts that lie before `end` as a whole, but for those of an unfinished character behind them."""
        count = at = 0
        for number, held in enumerate(self._held, 1):
            at += len(held.text)
            if held.text and at <= end:
                count = number
        found, self._held = self._held[:count], self._held[count:]
        return found

    def _cut(self, end: int) -> list[Part]:
        """All that lies before `end`, the last part shortened if need be."""
        found, at = [], 0
        for held in self.close():
            if at >= end:
                break
            kept = held.text[: end - at]
            found.append(held if kept == held.text else dataclasses.replace(held, text=kept))  # type: ignore[type-var]
            at += len(held.text)
        return found

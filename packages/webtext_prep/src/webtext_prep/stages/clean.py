"""`webtext clean`: repair the text, keep the wanted language, drop what is too short.

ftfy repairs text that was decoded wrongly, langdetect names the language from the beginning of the text, and GPT-2's
own tokenizer counts tokens. Each is asked only where the answer is in doubt: plain ASCII needs no repair, and a text
with fewer bytes, or more words, than the wanted tokens needs no tokenizer. The results are exactly those of asking.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from command_kit import setting
from indexed_tokens import Tokenizer
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.running.stage import DocumentStage
from webtext_prep.running.tally import Tally

LANGUAGE_CHARACTERS = 1000
"""langdetect reads this many characters: .992 accurate on web pages, and ten times faster than on whole ones."""

_SUSPECT = bytes(byte for byte in range(32) if byte not in b"\t\n") + b"\x7f&"
"""The ASCII characters that ftfy may change: control characters, and what begins an HTML entity."""

_LONGEST_SEGMENT = 1_000_000
"""ftfy cuts longer lines, by its default setting."""


def repair(text: str) -> str:
    """`ftfy.fix_text(text)`, without calling it where it changes nothing.

    ftfy goes line by line. An ASCII line without control characters (carriage returns among them) and without `&`, with
    which HTML entities begin, passes its default settings unchanged; the only thing that one line leaves to the next
    ones is that a `<` ends the unescaping of entities.
    """
    if _is_plain(text):
        return text
    import ftfy

    lines = text.split("\n")
    if max(map(len, lines)) >= _LONGEST_SEGMENT:
        return ftfy.fix_text(text)
    settings = ftfy.TextFixerConfig()
    repaired = []
    for number, line in enumerate(lines, 1):
        segment = line if number == len(lines) else line + "\n"
        if settings.unescape_html and "<" in segment:
            settings = settings._replace(unescape_html=False)
        repaired.append(segment if _is_plain(segment) else ftfy.fix_text_segment(segment, settings))
    return "".join(repaired)


def _is_plain(text: str) -> bool:
    if not text.isascii():
        return False
    encoded = text.encode("ascii")
    return len(encoded.translate(None, _SUSPECT)) == len(encoded)


@functools.lru_cache(maxsize=1)
def _langdetect() -> Callable[[str], str]:
    """langdetect with a fixed seed: without one, 3% of short texts change their answer from run to run."""
    from langdetect import DetectorFactory, detect

    DetectorFactory.seed = 0
    detect("This sentence loads the language profiles.")
    return detect


def detect_language(text: str) -> str | None:
    """The ISO 639-1 code of the language (`zh-cn` and `zh-tw` for Chinese), or None where there is nothing to go by."""
    from langdetect.lang_detect_exception import LangDetectException

    try:
        return _langdetect()(text[:LANGUAGE_CHARACTERS])
    except LangDetectException:
        return None


def has_tokens(text: str, least: int, tokenizer: Tokenizer) -> bool:
    """Whether `text` has at least `least` tokens, counted only where that is not plain from its length.

    A token is at least one byte, and GPT-2 never joins what white space parts, so that tokens lie between the words
    and the bytes of a text.
    """
    if len(text) < least and len(text.encode("utf-8", "surrogatepass")) < least:
        return False
    if len(text.split(maxsplit=least)) >= least:
        return True
    return len(tokenizer.encode(text)) >= least


@dataclass(frozen=True)
class Clean(DocumentStage):
    """Repair text with ftfy, keep documents in the wanted language with at least --min-tokens GPT-2 tokens.

    Reads and writes document shards. Drops: empty, too_short, language_unknown, language_XX."""

    name: ClassVar[str] = "clean"
    order: ClassVar[int] = 50
    summary: ClassVar[str] = "documents -> repaired documents in one language, long enough"

    language: str = setting("en", "the language to keep, as ISO 639-1 code; 'any' keeps all", metavar="CODE")
    min_tokens: int = setting(128, "drop documents with fewer GPT-2 tokens")
    fix_text: bool = setting(True, "repair wrongly decoded text with ftfy")

    def __post_init__(self) -> None:
        if self.min_tokens < 0:
            raise InputError(f"--min-tokens must not be negative, but is {self.min_tokens}.")
        if self.language != "any":
            from langdetect import detector_factory

            detector_factory.init_factory()
            known = sorted(detector_factory._factory.get_lang_list())
            if self.language not in known:
                raise InputError(f"--language {self.language} is not known: choose any or one of {', '.join(known)}.")

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the repaired documents that are kept, with their language in the metadata."""
        tokenizer = Tokenizer.gpt2()
        for document in documents:
            text = repair(document.text) if self.fix_text else document.text
            if text != document.text:
                tally.notes["repaired"] += 1
                document.text = text
            if not text.strip():
                tally.drop(document, "empty")
                continue
            # The cheap question first: most of what is dropped is too short.
            if not has_tokens(text, self.min_tokens, tokenizer):
                tally.drop(document, "too_short")
                continue
            if self.language != "any":
                language = detect_language(text)
                if language != self.language:
                    tally.drop(document, f"language_{language or 'unknown'}")
                    continue
                document.metadata["language"] = language
            yield document

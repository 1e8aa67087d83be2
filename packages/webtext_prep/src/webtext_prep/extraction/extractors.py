"""From the bytes of a page to its text: `learned` (the default), `trafilatura`, `newspaper`, `resiliparse`.

Each is one function, `extract(html, url, charset) -> Extracted`, without network, cache or state between pages. On 120
real pages with gold snippets, one core: trafilatura F1 .912 at 71 pages per second, resiliparse .856 at 383, newspaper
.843 at 29 (its own `parse()`, same text: 21). `learned` keeps the blocks that decision trees take for main text; its
figures are in docs/benchmarks/extraction.md.

None of them bounds its own time or memory: call them through `webtext_prep.extraction.processes.pool`.

Pages are decoded the same way for all of them (`text.decoding`).
"""

from __future__ import annotations

import contextlib
import functools
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webtext_prep.extraction.html.cleaning import cleaned, parsed
from webtext_prep.text.decoding import decode, readable, scrub, title_line, title_of

if TYPE_CHECKING:
    from webtext_prep.extraction.html.markup import Markup

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9:-]*)[^<>]*?(/?)>")
DEPTH_LIMIT = 255
"""libxml2 stops reading a page that nests deeper, and says nothing (`xmlParserMaxDepth` of its HTML parser is 256)."""

# Elements without an end tag, and elements whose end tag is so often left out that counting them says nothing.
_NO_END_TAG = "area base br col embed hr img input link meta param source track wbr"
_OFTEN_LEFT_OPEN = "p li dt dd option tr td th"
_UNNESTED = frozenset(f"{_NO_END_TAG} {_OFTEN_LEFT_OPEN}".split())


@dataclass(frozen=True, slots=True)
class Extracted:
    """What a page says.

    Attributes:
        text: its main text, paragraphs separated by newlines.
        title: "" where it has none.
        kind: one of KINDS, or "" where the extractor does not tell.
        kind_probability: how likely that kind is, or None where the extractor does not tell.
        text_share: the share of the page's characters that are its text, or None where the extractor does not tell.
    """

    text: str
    title: str = ""
    kind: str = ""
    kind_probability: float | None = None
    text_share: float | None = None


Extractor = Callable[..., Extracted]


def nests_too_deep(html: bytes) -> bool:
    """Whether the page opens more than 255 elements inside each other, which makes lxml lose its text in silence."""
    depth = 0
    for tag in _TAG.finditer(html.decode("latin-1")):
        if tag[3] or tag[2].lower() in _UNNESTED:
            continue
        depth = max(0, depth - 1) if tag[1] else depth + 1
        if depth > DEPTH_LIMIT:
            return True
    return False


def trafilatura(html: bytes, url: str, charset: str | None = None, markup: Markup = "plain") -> Extracted:
    """Main text by trafilatura in its fast mode, without comments, with tables.

    The settings had the best F1 of six on the gold pages; its slower mode finds .003 more of the text.
    """
    from trafilatura import extract

    page = readable(html, charset)
    tree = cleaned(page)
    form = "txt" if markup == "plain" else "markdown"
    text = extract(page if tree is None else tree, url=url, fast=True, include_comments=False, output_format=form)
    return Extracted(scrub(text or "").strip(), title_of(page))


@contextlib.contextmanager
def _own_temporary_folder() -> Iterator[None]:
    """newspaper makes folders in the system's temporary one when it is imported, and fails if another user's lie there.

    Nothing used here needs them.
    """
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


@functools.lru_cache(maxsize=1)
def _newspaper() -> tuple[Any, ...]:
    with _own_temporary_folder():
        from newspaper.cleaners import DocumentCleaner
        from newspaper.configuration import Configuration
        from newspaper.extractors import ContentExtractor
        from newspaper.outputformatters import OutputFormatter
        from newspaper.settings import STOPWORDS_DIR
    known = frozenset(path.stem.removeprefix("stopwords-") for path in Path(STOPWORDS_DIR).glob("stopwords-*.txt"))
    return Configuration, ContentExtractor, DocumentCleaner, OutputFormatter, known


def newspaper(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """Main text as newspaper3k's `Article(url, fetch_images=False)` gives it after `parse()`, of a cleaned page.

    The same parts are called in the same order (the texts of 120 pages were the same), without the ones that collect
    authors, links and pictures, one of which may look up a list on the internet, and without its `download()`. A page
    in a language for which newspaper has no stop words, at which it would raise an error, is read as English.
    """
    configuration_class, extractor_class, cleaner_class, formatter_class, known = _newspaper()
    page = readable(html, charset)
    configuration = configuration_class()
    configuration.fetch_images = False
    tree = cleaned(page)
    if tree is None:
        tree = configuration.get_parser().fromstring(page)
    if tree is None:
        return Extracted("", title_of(page))
    extractor, formatter = extractor_class(configuration), formatter_class(configuration)
    language = extractor.get_meta_lang(tree)
    if language in known:
        extractor.update_language(language)
        formatter.update_language(language)
    best = extractor.calculate_best_node(cleaner_class(configuration).clean(tree))
    if best is None:
        return Extracted("", title_of(page))
    text, _ = formatter.get_formatted(extractor.post_cleanup(best))
    return Extracted(scrub(text).strip(), title_of(page))


def resiliparse(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """Main text by Resiliparse: five times faster than trafilatura, and takes more of what surrounds the text.

    What `readable` mends, its parser reads as browsers do: pages are only decoded.
    """
    from resiliparse.extract.html2text import extract_plain_text

    tree = parsed(decode(html, charset))
    text = extract_plain_text(tree, main_content=True, alt_texts=False, list_bullets=False)
    return Extracted(scrub(text).strip(), title_line(tree.title or ""))


def learned(html: bytes, url: str, charset: str | None = None, markup: Markup = "plain") -> Extracted:
    """Main text by the blocks that learned trees keep, for any kind of page, and that kind."""
    from webtext_prep.extraction.learned.choice import main_text

    page = readable(html, charset)
    title = title_of(page)
    text, kind, probability, share = main_text(page, url, title, markup)
    return Extracted(scrub(text).strip(), title, kind, round(probability, 2) if kind else None, round(share, 2))


def plain_text(html: bytes, url: str, charset: str | None = None) -> Extracted:
    """A page that is not HTML but text: all of it."""
    return Extracted(scrub(decode(html, charset)).strip())


EXTRACTORS: dict[str, Extractor] = {
    "trafilatura": trafilatura,
    "newspaper": newspaper,
    "resiliparse": resiliparse,
    "learned": learned,
}
"""What `--extractor` chooses from."""
LIBRARIES: dict[str, tuple[str, ...]] = {
    "trafilatura": ("trafilatura", "lxml"),
    "newspaper": ("newspaper3k", "lxml", "lxml-html-clean"),
    "resiliparse": ("resiliparse",),
    "learned": ("lxml",),
}
"""Of each, the distributions whose versions decide what it makes of a page."""


def extractor_of(name: str, markup: Markup) -> Extractor:
    """The extractor of a name that writes such a text."""
    return EXTRACTORS[name] if markup == "plain" else functools.partial(EXTRACTORS[name], markup=markup)


def warm_up(name: str) -> None:
    """Import what an extractor needs, and let it fill its tables, before the first page is timed."""
    page = b"<html><head><title>t</title></head><body><article><p>Some words of text.</p></article></body></html>"
    EXTRACTORS[name](page, "http://example.com/", None)

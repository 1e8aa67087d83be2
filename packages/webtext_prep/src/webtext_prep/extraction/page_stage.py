"""What the stages have in common that extract the text of pages: the extractor, and what one page may cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from command_kit import available_cores, parse_json, setting
from command_kit.settings import check_choices, check_limits
from webtext_prep import storage
from webtext_prep.documents.folders.shards import DROPPED
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.errors import InputError
from webtext_prep.extraction.learned import PARAMETERS
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running.stage import Stage, Writes
from webtext_prep.storage.locations import Location

if TYPE_CHECKING:
    from webtext_prep.extraction.processes.pool import ExtractorPool
    from webtext_prep.extraction.processes.workers import PageLimits


PAGE_BYTES = 256 << 20
"""Bytes of page bodies that are being read, extracted, or wait for a free extractor, all --workers together; each of
them may exceed its part by one page."""


_PAGES_SUFFIX = ".warc.gz"


def pages_of(shard: Location) -> Location:
    """Where the pages of a shard of documents belong: `pages/part-00000.warc.gz`."""
    return shard.parent / PAGES / f"{shard.name.partition('.')[0]}{_PAGES_SUFFIX}"


def saved_pages(output: Location) -> list[Location]:
    """The files with pages in the output of a download, or of a rescue."""
    return [file for file in storage.files_in(output / PAGES) if file.name.endswith(_PAGES_SUFFIX)]


def known_kinds() -> list[str]:
    """The kinds of pages that `learned` tells apart."""
    return list(parse_json(PARAMETERS.read_text(encoding="utf-8"))["kinds"])


def parsers_of(slots: int) -> int:
    """How many pages a task extracts at once, one of `slots` on its machine: its share of the cores."""
    return max(1, available_cores() // slots)


@dataclass(frozen=True)
class PageReader(Stage):
    """A stage that looks for the text of pages."""

    extractor: Literal["learned", "trafilatura", "newspaper", "resiliparse"] = setting(
        "learned", "what extracts the text of a page: our own by kind of page, or a library"
    )
    max_bytes: int = setting(5_000_000, "most bytes of a page, decompressed", ge=1, le=1 << 30)
    extract_timeout: float = setting(
        20.0, "seconds of processor time to extract one page", metavar="SECONDS", ge=0.1, le=3600
    )
    extract_memory: int = setting(1024, "MiB of memory to extract one page", metavar="MIB", ge=64)

    opt_outs: Literal["obey", "record", "ignore"] = setting(
        "obey", "pages whose owner refuses training: leave them out, or keep and mark them, or don't look"
    )

    def __post_init__(self) -> None:
        check_limits(self)
        check_choices(self)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the extractor consists of, and what tells the encoding of a page and its domain."""
        from webtext_prep.extraction.extractors import LIBRARIES

        return (*LIBRARIES[self.extractor], "resiliparse", "tldextract")

    def limits(self, folder: Path) -> PageLimits:
        """What an extractor is to do with a page, and may cost; `folder` takes what it puts somewhere."""
        from webtext_prep.extraction.processes.workers import PageLimits

        return PageLimits(self.extractor, (), self.extract_timeout, self.extract_memory, str(folder), "plain")

    def pool(self, folder: Path, slots: int) -> ExtractorPool:
        """The extractors of a task, one of `slots` on its machine; see `limits`."""
        from webtext_prep.extraction.processes.pool import ExtractorPool

        return ExtractorPool(self.limits(folder), parsers_of(slots))


@dataclass(frozen=True)
class PageStage(PageReader):
    """A stage that turns pages into documents."""

    writes: ClassVar[Writes] = Writes(folders=("", DROPPED, OUTCOMES))

    kinds: tuple[str, ...] = setting((), "kinds of pages to keep; none given keeps all", choices=known_kinds)
    markup: Literal["plain", "markdown"] = setting(
        "plain", "how a text is written: plain lines, or Markdown with headings, lists, tables, and code in fences"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds and self.extractor != "learned":
            raise InputError(f"--kinds needs --extractor learned: {self.extractor} does not tell kinds of pages.")
        if self.markup == "markdown" and self.extractor not in ("learned", "trafilatura"):
            raise InputError(
                f"--markup markdown needs --extractor learned or trafilatura: {self.extractor} gives plain text only."
            )

    def limits(self, folder: Path) -> PageLimits:
        """See `PageReader.limits`."""
        return replace(super().limits(folder), kinds=self.kinds, markup=self.markup)

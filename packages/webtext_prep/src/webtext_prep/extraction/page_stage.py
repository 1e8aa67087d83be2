"""What the stages have in common that extract the text of pages: the extractor, and what one page may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from command_kit import available_cores, setting
from webtext_prep.running.stage import Stage
from webtext_prep.running.tasks import Context

if TYPE_CHECKING:
    from webtext_prep.extraction.pool import ExtractorPool


PAGE_BYTES = 256 << 20
"""Bytes of page bodies that are being read, extracted, or wait for a free extractor, all --workers together; each of
them may exceed its part by one page."""
PARSER_BYTES = 250 << 20
"""Memory of a process that extracts, in ordinary work; `--extract-memory` is its limit."""


@dataclass(frozen=True)
class PageStage(Stage):
    """A stage that turns pages into documents."""

    extractor: Literal["trafilatura", "newspaper", "resiliparse", "learned"] = setting(
        "trafilatura", "library that extracts the text of a page"
    )
    max_bytes: int = setting(5_000_000, "most bytes of a page, decompressed", ge=1, le=1 << 30)
    extract_timeout: float = setting(
        20.0, "seconds of processor time to extract one page", metavar="SECONDS", ge=0.1, le=3600
    )
    extract_memory: int = setting(1024, "MiB of memory to extract one page", metavar="MIB", ge=64)

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the extractor consists of, and what tells the encoding of a page and its domain."""
        from webtext_prep.extraction.extractors import LIBRARIES

        return (*LIBRARIES[self.extractor], "resiliparse", "tldextract")

    @staticmethod
    def parsers(context: Context) -> int:
        """How many pages a task extracts at once: its share of the cores."""
        return max(1, available_cores() // context.slots)

    def pool(self, context: Context) -> ExtractorPool:
        """The extractors of a task."""
        from webtext_prep.extraction.pool import ExtractorPool

        return ExtractorPool(
            self.extractor,
            workers=self.parsers(context),
            seconds=self.extract_timeout,
            memory=self.extract_memory,
            folder=str(context.scratch),
        )

"""What a corpus holds: documents, bytes and tokens by domain and language, and which keys its metadata has."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from webtext_audit.export.columns import kind_of, may_be_column
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.urls.urls import domain_of

MOST_KEYS = 1000
"""Of different keys of metadata in one shard; those met later become no columns."""
NO_DOMAIN = ""
"""Documents without a web address, or with one whose host is no domain."""
_DOMAIN = re.compile(r"[\w-]+(\.[\w-]+)+")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]{2,8})?")

Count = list[int]
"""Documents, bytes of text (UTF-8), GPT-2 tokens."""


@dataclass
class Measures:
    """Counts of documents; those of several shards add up.

    Attributes:
        total: of all documents.
        domains: registered domain (`example.co.uk`) to its count; `NO_DOMAIN` for documents that have none.
        languages: language as the metadata has it (`en`, `zh-cn`) to its count; empty for documents without one.
        kinds: key of metadata to kind of value (`columns.kind_of`) to the number of documents.
    """

    total: Count = field(default_factory=lambda: [0, 0, 0])
    domains: dict[str, Count] = field(default_factory=dict)
    languages: dict[str, Count] = field(default_factory=dict)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, document: Document, size: int, tokens: int) -> None:
        """Count one document of `size` bytes and so many tokens."""
        for count in (
            self.total,
            self.domains.setdefault(proper_domain(document.url), [0, 0, 0]),
            self.languages.setdefault(_language_of(document), [0, 0, 0]),
        ):
            count[0] += 1
            count[1] += size
            count[2] += tokens
        for key, value in document.metadata.items():
            of_key = self.kinds.get(key)
            if of_key is None:
                if len(self.kinds) >= MOST_KEYS or not may_be_column(key):
                    continue
                of_key = self.kinds[key] = {}
            kind = kind_of(value)
            of_key[kind] = of_key.get(kind, 0) + 1

    def merge(self, other: Measures) -> None:
        """Add the counts of others."""
        self.total = [a + b for a, b in zip(self.total, other.total, strict=True)]
        for mine, theirs in ((self.domains, other.domains), (self.languages, other.languages)):
            for name, count in theirs.items():
                mine[name] = [a + b for a, b in zip(mine.get(name, [0, 0, 0]), count, strict=True)]
        for key, of_key in other.kinds.items():
            mine_of_key = self.kinds.setdefault(key, {})
            for kind, number in of_key.items():
                mine_of_key[kind] = mine_of_key.get(kind, 0) + number

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"total": self.total, "domains": self.domains, "languages": self.languages, "kinds": self.kinds}

    @property
    def domains_by_size(self) -> list[tuple[str, Count]]:
        """The domains with the most bytes first (ties by name), without the documents that have none."""
        named = ((name, count) for name, count in self.domains.items() if name != NO_DOMAIN)
        return sorted(named, key=lambda entry: (-entry[1][1], entry[0]))


def proper_domain(url: str) -> str:
    """`domain_of` where that has the form of a domain or of an address in IPv4, else `NO_DOMAIN`."""
    name = domain_of(url).lower()
    return name if _DOMAIN.fullmatch(name) and not name.startswith("-") else NO_DOMAIN


def _language_of(document: Document) -> str:
    found = document.metadata.get("language")
    return found if isinstance(found, str) and _LANGUAGE.fullmatch(found) else ""


@dataclass(frozen=True)
class TopDomains:
    """How many of the domains are listed: a share of them, or a number.

    Attributes:
        share: of all domains, rounded up, or None.
        number: at most, or None.
    """

    share: float | None
    number: int | None

    @classmethod
    def parse(cls, text: str) -> TopDomains:
        """`10%` or `1000`. Raises InputError."""
        try:
            if text.endswith("%"):
                percent = float(text[:-1])
                if 0 < percent <= 100:
                    return cls(percent / 100, None)
            elif int(text) > 0:
                return cls(None, int(text))
        except ValueError:
            pass
        raise InputError(f"--top-domains {text}: give a share such as 10%, or a number such as 1000.")

    def of(self, domains: int) -> int:
        """How many of so many."""
        if self.share is not None:
            # 10% of 30 is 3, though 0.1 * 30 is a little more.
            return math.ceil(round(self.share * domains, 6))
        return min(domains, self.number or 0)


def sum_of(counts: Iterable[Count]) -> Count:
    """All of them together."""
    total = [0, 0, 0]
    for count in counts:
        total = [a + b for a, b in zip(total, count, strict=True)]
    return total

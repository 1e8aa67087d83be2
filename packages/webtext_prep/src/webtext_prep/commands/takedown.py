"""`webtext takedown`: what the removal of some URLs would touch at every stage, and what has seen them.

It looks and writes nothing but the indices of `webtext why`. A URL stands for all documents that `webtext merge` takes
for the same page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from command_kit import available_cores, setting
from indexed_tokens import IndexedTokens
from webtext_prep.commands.base import Command
from webtext_prep.commands.known_stages import known_stages
from webtext_prep.commands.why import seen_in_training, steps_of
from webtext_prep.documents.shards import read_chosen_documents
from webtext_prep.documents.storage import location
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.token_runs import shuffle_key
from webtext_prep.documents.url_lists import read_urls
from webtext_prep.documents.urls import url_key
from webtext_prep.errors import InputError
from webtext_prep.lineage import Step
from webtext_prep.lookup import catalogue as kinds
from webtext_prep.lookup.catalogue import Catalogue
from webtext_prep.lookup.index import Hit
from webtext_prep.running.findings import Findings

SHOWN = 5


@dataclass(frozen=True)
class Takedown(Command):
    """Say what the removal of some pages touches: which lists, shards and token files hold them, at every stage that
    DIR was made from, and with --run which checkpoints have seen them.

    Nothing is removed."""

    name: ClassVar[str] = "takedown"
    order: ClassVar[int] = 40
    summary: ClassVar[str] = "a list of URLs -> which shards, token files and checkpoints hold them"

    folder: str = setting("", "the output of a stage, or the prefix of token files", metavar="DIR", positional=True)
    urls: str = setting("", "a list of the URLs", metavar="FILE")
    run: str = setting("", "folder of a `gpt2 train`: also say which checkpoints have seen them", metavar="RUN")
    workers: int = setting(0, "processes that build an index; 0 means all cores", ge=0)

    def find(self) -> Findings:
        """Look for all URLs. Raises InputError for an empty list, or one that can't be read."""
        if not self.urls or not self.folder:
            raise InputError("webtext takedown needs --urls FILE and a DIR: say what to look for, and where.")
        urls = list({url_key(row.url): row.url for row in read_urls(location(self.urls))}.values())
        if not urls:
            raise InputError(f"{self.urls} holds no URL: give one a line.")
        steps = steps_of(self.folder, self.run)
        search = _Search(urls, Catalogue(steps, known_stages(), self.workers or available_cores()))
        touched = [search.touched(step) for step in steps]
        values: dict[str, Any] = {
            "urls": len(urls),
            "not_found": [url for url in urls if url not in search.found],
            "steps": touched,
        }
        if self.run:
            values["training"] = seen_in_training(self.run, search.tokens)
        return Findings(_shown(values), values)


class _Search:
    """Finds all URLs in one step after another."""

    def __init__(self, urls: list[str], catalogue: Catalogue) -> None:
        self.found: set[str] = set()
        self.tokens: dict[str, list[int]] = {}
        self._urls, self._catalogue = urls, catalogue
        self._hits: dict[int, list[Hit]] = {}

    def touched(self, step: Step) -> dict[str, Any]:
        """What of one step holds some of the URLs."""
        told: dict[str, Any] = {"stage": step.stage, "place": step.name}
        if step.state is None:
            return {**told, "note": "not searched: it is gone, made again since, or not on this machine"}
        if not step.is_tokens:
            self._hits[id(step)] = self._all(step, kinds.URLS)
            told["files"] = _by_file(
                self._hits[id(step)] + self._all(step, kinds.GONE) + self._all(step, kinds.OUTCOME)
            )
            told["lists"] = _by_file(self._all(step, kinds.LISTED))
            return told
        numbers = self._joined(step) if step.stage == "merge-tokens" else self._encoded(step)
        if numbers is None:
            return {**told, "note": "not searched: what it was made from is gone"}
        self.tokens[step.name] = numbers
        if numbers:
            told["files"] = {f"{step.name}.bin": len(numbers)}
        return told

    def _all(self, step: Step, kind: str) -> list[Hit]:
        hits = {url: self._catalogue.find(step, kind, url) for url in self._urls}
        self.found |= {url for url, places in hits.items() if places}
        return [hit for places in hits.values() for hit in places]

    def _encoded(self, step: Step) -> list[int] | None:
        """The numbers of the documents in the token files of `tokenize`: a pass over each shard that holds some."""
        if not self._catalogue.has(step, kinds.ORDER):
            return None
        hits = [hit for before in step.inputs for hit in self._hits.get(id(before), [])]
        rows: dict[Location, set[int]] = {}
        for hit in hits or self._all(step, kinds.LISTED):
            rows.setdefault(hit.file, set()).add(hit.row)
        settings, numbers = step.record["settings"], []
        for file, chosen in rows.items():
            for row, document in read_chosen_documents(file, chosen.__contains__):
                if document.text and settings["shuffle"]:
                    number = self._catalogue.rank(step, shuffle_key(document, settings["seed"]), file, row)
                else:
                    number = self._catalogue.place(step, file, row) if document.text else None
                numbers += [] if number is None else [number]
        return sorted(numbers)

    def _joined(self, step: Step) -> list[int] | None:
        before, numbers = 0, []
        if step.plain_files or any(source.place is None for source in step.inputs):
            return None
        for source in step.inputs:
            if source.name not in self.tokens:
                return None
            numbers += [before + number for number in self.tokens[source.name]]
            before += IndexedTokens(source.name).documents
        return numbers


def _by_file(hits: list[Hit]) -> dict[str, int]:
    """How many of the rows each file has, by file."""
    counts: dict[str, int] = {}
    for hit in hits:
        counts[str(hit.file)] = counts.get(str(hit.file), 0) + 1
    return dict(sorted(counts.items()))


def _shown(values: dict[str, Any]) -> str:
    missing = values["not_found"]
    lines = [f"{values['urls']:,} URLs, {values['urls'] - len(missing):,} of them found"]
    for step in values["steps"]:
        files = {**step.get("lists", {}), **step.get("files", {})}
        lines.append(f"  {step['stage']:<14}{step['place']}: {step.get('note') or f'{len(files):,} files'}")
        lines += [f"  {'':<14}  {name}: {count:,}" for name, count in files.items()]
    if "training" in values:
        training = values["training"]
        seen = [document for document in training["documents"] if document["steps"]]
        lines.append(f"  training {training['run']}: has read {len(seen):,} documents of them")
        lines += [f"    {each['checkpoint']}: has seen {each['has_seen']:,}" for each in training["checkpoints"]]
    if missing:
        lines.append(f"  not found: {', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''}")
    return "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines)

"""`webtext takedown`: what the removal of some URLs would touch at every stage, what has seen them, and the removal.

Without --apply it looks and writes nothing. A URL stands for all documents that
`webtext merge` takes for the same page.

The removal is no surgery: the lists without the URLs are run through the same stages again (`lineage.py`), and
so the outputs are the same as of a run that never had them: documents that were dropped as duplicates of theirs come
back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from command_kit import available_cores, setting
from webtext_audit.commands.why import seen_in_training, steps_of, whole
from webtext_audit.lineage import Planned, plan_of, read_plan, stamps_of, write_plan
from webtext_audit.search import DROPS, LISTED, OUTCOME, SHARDS, SUBMITTED, Hit, Search
from webtext_audit.token_places import TokenPlaces, has_input, joined
from webtext_prep import storage
from webtext_prep.cli import find_stages
from webtext_prep.commands import Command
from webtext_prep.documents.folders import shards, stage_record, url_lists
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings, show
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import url_key

SHOWN = 5
PLAN = "takedown.json"
"""In the state of DIR, until a removal is done: which URLs, what was found of them, and the steps to make again."""


@dataclass(frozen=True)
class Takedown(Command):
    """Say what the removal of some pages touches: which lists, shards and token files hold them, at every stage that
    DIR was made from, and with --run which checkpoints have seen them.

    Nothing is removed, unless --apply is given: take the URLs out of the lists (or files) that you began with, and
    every output from there to DIR becomes what it would be if they had never been there. Only what differs is written,
    and nothing is fetched again. Killed, the same command goes on."""

    name: ClassVar[str] = "takedown"
    order: ClassVar[int] = 40
    summary: ClassVar[str] = "a list of URLs -> which shards, token files and checkpoints hold them"

    folder: str = setting("", "the output of a stage, or the prefix of token files", metavar="DIR", positional=True)
    urls: str = setting("", "a list of the URLs", metavar="FILE")
    run: str = setting("", "folder of a `gpt2 train`: also say which checkpoints have seen them", metavar="RUN")
    apply: bool = setting(False, "remove the pages from all outputs that DIR was made from, and from DIR")
    workers: int = setting(0, "processes at once; 0 means all cores", ge=0)

    def find(self) -> Findings:
        """Look for all URLs. Raises InputError for an empty list, or one that can't be read."""
        if not self.urls or not self.folder:
            raise InputError("webtext takedown needs --urls FILE and a DIR: say what to look for, and where.")
        urls = list({url_key(row.url): row.url for row in url_lists.read_urls(storage.location(self.urls))}.values())
        if not urls:
            raise InputError(f"{self.urls} holds no URL: give one a line.")
        folder = whole(self.folder)
        plan_path = _unfinished(folder)
        if plan_path is not None:
            return self._go_on(plan_path, urls)
        steps = steps_of(folder, self.run)
        holders = self._holders(urls, steps)
        touched = [holders.touched(step) for step in steps]
        values: dict[str, Any] = {
            "urls": len(urls),
            "not_found": [url for url in urls if url not in holders.found],
            "steps": touched,
            "changes": holders.search.changes,
        }
        if self.run:
            values["training"] = seen_in_training(self.run, holders.tokens)
        if not self.apply:
            # Whether pages were in what has changed since can't be said.
            return Findings(_shown(values), values, exit_code=int(bool(values["not_found"] and values["changes"])))
        end = stage_record.trace(folder)
        plan = plan_of(end, find_stages())
        _refuse_listed(touched)
        assert end.state is not None
        write_plan(end.state / PLAN, plan, urls=urls, found=values)
        return self._go_on(end.state / PLAN, urls)

    def _holders(self, urls: list[str], steps: list[stage_record.Step]) -> _Holders:
        return _Holders(urls, Search(steps, urls, self.workers or available_cores()))

    def _go_on(self, path: Path, urls: list[str]) -> Findings:
        """Make all steps again, one after the other. Raises InputError where the pages are still in the sources."""
        plan, more = read_plan(path)
        if not self.apply or set(urls) != set(more["urls"]):
            raise InputError(
                f"a removal of {len(more['urls']):,} pages from {self.folder} was interrupted ({path} names them): "
                "give its command again, with --apply and the same URLs, to finish it."
            )
        values, known, workers = more["found"], find_stages(), self.workers or available_cores()
        written: dict[str, list[str]] = {}
        for planned in plan:
            place = Path(planned.place)
            before = stamps_of(place)
            show(planned.job(known, workers).run(), as_json=False)
            now = stamps_of(place)
            changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            written[planned.place] = changed
            if planned.is_source:
                try:
                    self._refuse_held(planned, urls)
                except InputError:
                    if not any(written.values()):
                        storage.remove(path)  # nothing has been done
                    raise
        storage.remove(path)
        changes = [
            sentence for step in stage_record.all_steps(stage_record.trace(self.folder)) for sentence in step.changes()
        ]
        values = {**values, "written": written, "changes": changes}
        return Findings(_shown(values), values)

    def _refuse_held(self, planned: Planned, urls: list[str]) -> None:
        """Raise InputError if an output that was made again from the sources holds some of the pages."""
        step = stage_record.trace(planned.place)
        holders = self._holders(urls, [step])
        touched = holders.touched(step)
        _refuse_listed([touched])
        if touched.get("files"):
            raise InputError(
                f"{step.name} was made from {', '.join(planned.folders)}, and what lies there still holds "
                f"{len(holders.found):,} of the pages: take them out, and give the command again."
            )


def _unfinished(folder: str) -> Path | None:
    """The plan of a removal that was killed."""
    place = storage.location(folder)
    if not isinstance(place, Path):
        return None
    name = next(
        (place.name.removesuffix(end) for end in stage_record.TOKEN_SUFFIXES if place.name.endswith(end)), place.name
    )
    names = dict.fromkeys((place.name, name, name + stage_record.TOKENS_SUFFIX))
    paths = [stage_record.state_of(place.with_name(one)) / PLAN for one in names if one]
    return next((path for path in paths if path.is_file()), None)


def _refuse_listed(touched: list[dict[str, Any]]) -> None:
    """Raise InputError if files of the user's own, from which steps were made, name some of the pages."""
    held = {name: lines for step in touched for name, lines in step.get("rows", {}).items()}
    if held:
        (name, lines), *others = held.items()
        numbers = ", ".join(f"{line:,}" for line in lines[:SHOWN]) + (", ..." if len(lines) > SHOWN else "")
        more = f", and {len(others):,} files more (--json without --apply names all)" if others else ""
        raise InputError(
            f"{name} still names the pages, in row {numbers}{more}: take them out of there, and give the command again."
        )


class _Holders:
    """What of one step after another holds some of the URLs."""

    def __init__(self, urls: list[str], search: Search) -> None:
        self.search = search
        self.found: set[str] = set()
        self.tokens: dict[str, list[int]] = {}
        self._urls = urls
        self._hits: dict[int, list[Hit]] = {}

    def touched(self, step: stage_record.Step) -> dict[str, Any]:
        """What of one step holds some of the URLs."""
        told: dict[str, Any] = {"stage": step.stage, "place": step.name}
        if step.state is None:
            return {**told, "note": "not searched: it is gone, made again since, or not on this machine"}
        if not step.is_tokens:
            self._hits[id(step)] = self._all(step, SHARDS)
            told["files"] = _by_file(self._hits[id(step)] + self._all(step, DROPS) + self._all(step, OUTCOME))
            listed = self._all(step, LISTED) + self._all(step, SUBMITTED)
            told["lists"] = _by_file(listed)
            told["rows"] = {name: [hit.row + 1 for hit in listed if str(hit.file) == name] for name in told["lists"]}
            return told
        if step.stage != "merge-tokens":
            numbers = self._encoded(step)
        else:
            is_searched = all(source.name in self.tokens for source in step.inputs)
            numbers = joined(step, self.tokens) if is_searched else None
        if numbers is None:
            return {**told, "note": "not searched: what it was made from is gone"}
        self.tokens[step.name] = numbers
        if numbers:
            told["files"] = {f"{step.name}.bin": len(numbers)}
        return told

    def _all(self, step: stage_record.Step, kind: str) -> list[Hit]:
        hits = {url: self.search.find(step, kind, url) for url in self._urls}
        self.found |= {url for url, places in hits.items() if places}
        return [hit for places in hits.values() for hit in places]

    def _encoded(self, step: stage_record.Step) -> list[int] | None:
        """The numbers of the documents in the token files of `tokenize`: a pass over each shard that holds some."""
        hits = [hit for before in step.inputs for hit in self._hits.get(id(before), [])]
        hits = hits or self._all(step, LISTED)
        if not hits:
            return [] if has_input(step) else None
        rows: dict[Location, set[int]] = {}
        for hit in hits:
            rows.setdefault(hit.file, set()).add(hit.row)
        places, numbers = TokenPlaces(step), set[int]()
        for file, chosen in rows.items():
            for _, document in shards.read_chosen_documents(file, chosen.__contains__):
                numbers.update(places.find(document))
        return sorted(numbers)


def _by_file(hits: list[Hit]) -> dict[str, int]:
    """How many of the rows each file has, by file."""
    return dict(sorted(Counter(str(hit.file) for hit in hits).items()))


def _shown(values: dict[str, Any]) -> str:
    missing = values["not_found"]
    lines = [f"{values['urls']:,} URLs, {values['urls'] - len(missing):,} of them found"]
    for step in values["steps"]:
        files = {**step.get("lists", {}), **step.get("files", {})}
        count_of_files = f"{len(files):,} file{'s' if len(files) != 1 else ''}"
        lines.append(f"  {step['stage']:<16}{step['place']}: {step.get('note') or count_of_files}")
        lines += [f"  {'':<16}  {name}: {count:,}" for name, count in files.items()]
    if "training" in values:
        training = values["training"]
        seen = [document for document in training["documents"] if document["steps"]]
        lines.append(f"  training {training['run']}: has read {len(seen):,} document{'s' * (len(seen) != 1)} of them")
        lines += [f"    {each['checkpoint']}: has seen {each['has_seen']:,}" for each in training["checkpoints"]]
    for place, names in values.get("written", {}).items():
        lines.append(f"  made again: {place}: {len(names):,} files have changed")
    if missing:
        where = " in what is there now" if values.get("changes") else ""
        lines.append(f"  not found{where}: {', '.join(missing[:SHOWN])}{', ...' if len(missing) > SHOWN else ''}")
    lines += [f"  note: {sentence}" for sentence in values.get("changes", [])]
    return "\n".join("".join(c if c.isprintable() else "\ufffd" for c in line) for line in lines)

"""`webtext why`: the story of one document through every stage below a folder, by its URL or a passage of its text.

Each question is a scan (`search.py`) of what the stages wrote, shards and receipts.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from command_kit import available_cores, setting
from command_kit.charts.numbers import figure
from command_kit.colours import printable
from indexed_tokens import held_out_prefix
from webtext_audit.search import MOST_DUMP_BYTES, Search, find_passage, is_too_large, same_page
from webtext_audit.story import ABSENT, DROPPED, Story
from webtext_prep.cli import find_stages
from webtext_prep.commands import Command
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX, Step, all_steps, state_of, trace, trace_all
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.summary import Findings
from webtext_prep.storage import location
from webtext_prep.urls.urls import HELD_OUT

_URL = re.compile(r"\s*([a-z][a-z0-9+.-]*://|file:|id:)\S*\s*", re.IGNORECASE)
SHOWN_STEPS = 20


@dataclass(frozen=True)
class Why(Command):
    """Tell what became of one document, and why: from the list that named it to its tokens and training steps.

    WHAT is a URL, or a passage of a text. DIR is any output of a stage, or the prefix of token files: all stages that
    it was made from are looked at."""

    name: ClassVar[str] = "why"
    order: ClassVar[int] = 30
    summary: ClassVar[str] = "a URL, or a passage -> what became of that document at every stage, and why"

    what: str = setting("", "a URL, or a passage of a text", metavar="URL|TEXT", positional=True)
    folder: str = setting("", "the output of a stage, or the prefix of token files", metavar="DIR", positional=True)
    run: str = setting("", "folder of a `gpt2 train`: also say in which steps it was read", metavar="RUN")
    most: int = setting(3, "how many of the documents that hold the passage to show", ge=1)
    workers: int = setting(0, "processes that search; 0 means all cores", ge=0)

    def find(self) -> Findings:
        """Follow the document. Raises InputError if nothing of that kind was ever there."""
        if not self.what.strip() or not self.folder:
            raise InputError("webtext why needs a URL or a passage, and a DIR: say what to look for, and where.")
        known = find_stages()
        if not isinstance(location(self.folder), Path):
            raise InputError(
                f"{self.folder} is a URL, and outputs are searched on this machine: copy them here, and ask for the "
                "copy of the last one."
            )
        asked, steps = trace(self.folder).name, steps_of(whole(self.folder), self.run)
        workers, notes = self.workers or available_cores(), list[str]()
        if _URL.fullmatch(self.what):
            search = Search(steps, same_page(self.what), workers)
            story = self._story_of_url(steps, search)
            # Pieces of a page are documents of their own, each with its own fate.
            stories = [Story(piece, steps, search, known) for piece in story.pieces] or [story]
        else:
            urls, notes = find_passage(self.what, steps, self.most, workers)
            search = Search(steps, urls, workers)
            stories = [Story(url, steps, search, known) for url in urls]
        told = [story.as_dict() for story in stories]
        for found in told:
            # Of a page that was not held out, what holds such pages says nothing, unless it was asked for.
            beside = [event["place"] != asked and event.get("reason") == f"not_{HELD_OUT}" for event in found["events"]]
            found["events"] = [event for event, is_beside in zip(found["events"], beside, strict=True) if not is_beside]
        notes += search.changes
        for story, found in zip(stories, told, strict=True) if self.run else ():
            found["training"] = seen_in_training(self.run, story.tokens)
        text = "\n\n".join([*map(_shown, told), *notes])
        return Findings(printable(text), {"stories": told, "notes": notes})

    def _story_of_url(self, steps: list[Step], search: Search) -> Story:
        candidates = same_page(self.what)
        for url in candidates:
            story = Story(url, steps, search, find_stages())
            if story.is_found:
                if url != candidates[0]:
                    raise InputError(f"no document has the URL {candidates[0]}, but one has {url}: ask for that one.")
                return story
        gone = [step.name for step in steps if step.place is None]
        hint = f" Not searched, as they are gone: {', '.join(gone)}." if gone else ""
        large = [step.name for step in steps if is_too_large(step)]
        if large:
            hint += (
                f" Nor what {', '.join(large)} dropped, as dumps of more than {MOST_DUMP_BYTES >> 20} MiB are not "
                "searched."
            )
        hint += "".join(f" {sentence}" for sentence in search.changes)
        raise InputError(f"no stage below {self.folder} has met the URL {candidates[0]}: check its spelling.{hint}")


def whole(folder: str) -> str:
    """The output that a user names; where it holds what was held out of another one next to it, that one."""
    found = _with_record([folder])
    place = location(found[0] if found else folder)
    for end in (TOKENS_SUFFIX, ""):
        if isinstance(place, Path) and place.name.endswith(f"_{HELD_OUT}{end}"):
            other = place.with_name(place.name.removesuffix(f"_{HELD_OUT}{end}") + end)
            if _with_record([str(other)]) or state_of(other).is_dir():
                return str(other)
    return folder


def steps_of(folder: str, run: str) -> list[Step]:
    """The steps that made an output, the token files of a run, if one is given, and what was held out of each."""
    ends = [folder, *(_with_record(_prefixes(run)) if run else [])]
    steps = all_steps(*trace_all(ends))
    held_out = _with_record(str(held_out_prefix(step.place)) for step in steps if isinstance(step.place, Path))
    return all_steps(*trace_all([*ends, *held_out])) if held_out else steps


def _with_record(places: Iterable[str]) -> list[str]:
    """The folders and token files whose record is there."""
    found = []
    for place in places:
        with contextlib.suppress(InputError):
            found.append(trace(place).name)
    return found


def _prefixes(run: str) -> list[str]:
    """The token files in a run's settings. Raises InputError where there are none."""
    path = Path(run) / "config.toml"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["train"]["data"]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{run} is not the folder of a `gpt2 train` (no settings in {path}).") from error
    return [re.sub(r"^\d*\.?\d+:", "", entry) for entry in entries]


def seen_in_training(run: str, tokens: dict[str, list[int]]) -> dict[str, Any]:
    """What `gpt2 seen` says of documents, given by the prefix of their token files and their numbers.

    The two packages know nothing of each other: it is asked as a command. Raises WebtextError where that fails.
    """
    used = _prefixes(run)
    # The same files, or where both were moved files of the same name.
    same = {str(Path(prefix).resolve()) for prefix in used}, {Path(prefix).name for prefix in used}
    own = next((item for item in tokens.items() if str(Path(item[0]).resolve()) in same[0]), None) or next(
        (item for item in tokens.items() if Path(item[0]).name in same[1]), None
    )
    if own is None or not own[1]:
        return {
            "run": run,
            "steps": 0,
            "documents": [],
            "checkpoints": [],
            "note": "nothing of it is in the data of this run",
        }
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as numbers:
        numbers.write("\n".join(map(str, own[1])))
        numbers.flush()
        words = [sys.executable, "-m", "gpt2_train", "seen", "--run", run, "--data", own[0], "--json"]
        words += ["--documents-file", numbers.name]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["is webtext-gpt2[train] installed?"]
        raise WebtextError(f"`gpt2 seen` failed: {reason[0]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# What people read


def _shown(story: dict[str, Any]) -> str:
    lines = [story["url"]]
    for event in story["events"]:
        if event["verdict"] != ABSENT:
            lines += _event_lines(event)
    if story["text"]:
        lines += ["", *(f"  | {line}" for line in story["text"].splitlines())]
    if "training" in story:
        lines += ["", *_training_lines(story["training"])]
    return "\n".join(lines)


def _event_lines(event: dict[str, Any]) -> list[str]:
    values = dict(event)
    stage, place, verdict = (values.pop(name) for name in ("stage", "place", "verdict"))
    reason = values.pop("reason", None)
    told = f"{verdict}: {reason}" if reason and verdict == DROPPED else verdict
    when = f", {values.pop('finished_at')}" if "finished_at" in values else ""
    lines = [f"  {stage:<16}{told:<28}  {place}{when}"]
    for name, value in values.items():
        lines += [f"  {'':<16}{line}" for line in _value_lines(name, value, verdict)]
    return lines


def _value_lines(name: str, value: Any, verdict: str) -> list[str]:
    if name in ("listed", "at"):
        return [_place_line(place, name) for place in value]
    if name == "values":
        return [f"{key.replace('_', ' ')}: {figure(entry)}" for key, entry in value.items()]
    if name == "cut_out":
        return [f"cut out: {row['match']!r} (from {row.get('evaluation') or row['duplicate_of']})" for row in value]
    if name == "note":
        return [str(value)]
    if isinstance(value, dict):
        return [f"{name.replace('_', ' ')}: {', '.join(f'{key} {figure(entry)}' for key, entry in value.items())}"]
    shown = " ".join(value.split()) if isinstance(value, str) else figure(value)
    return [f"{name.replace('_', ' ')}: {shown}"]


def _place_line(place: dict[str, Any], name: str) -> str:
    if "document" in place:
        first, count = place["first_token"], place["tokens"]
        begins = f", which begin {place['begins']!r}" if "begins" in place else ""
        return f"document {place['document']:,}, tokens {first:,} to {first + count:,}{begins}"
    number = f"line {place['line']:,}" if "line" in place else f"row {place['row']:,}"
    return f"{'in the list ' if name == 'listed' else ''}{place['file']}, {number}"


def _training_lines(training: dict[str, Any]) -> list[str]:
    lines = [f"  training {training['run']}, {training['steps']:,} steps"]
    for entry in training["documents"]:
        steps = entry["steps"]
        shown = ", ".join(f"{step:,}" for step in steps[:SHOWN_STEPS]) + (", ..." if len(steps) > SHOWN_STEPS else "")
        told = f"read in {len(steps):,} steps: {shown}" if steps else "not read"
        lines.append(f"    document {entry['document']:,} (split {entry['split'] or 'none'}): {told}")
    seen = [entry["checkpoint"] for entry in training["checkpoints"] if entry["has_seen"]]
    if training["checkpoints"]:
        lines.append(f"    checkpoints that have seen it: {', '.join(seen) or 'none'}")
    if "note" in training:
        lines.append(f"    {training['note']}")
    return lines

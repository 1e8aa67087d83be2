"""`webtext plan`: hours, memory, disk and what will be left, before a pipeline runs.

Each stage's row of `webtext_prep.running.estimates` is applied to what the stage before it leaves, beginning with a
sample of the input: a few MiB of it, of which bytes and documents follow. A download also takes as long as its busiest
host asks for. `plan.json` is read again by `webtext report`.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from command_kit import UsageError, available_cores, parse_json, setting, write_json
from command_kit.colours import BOLD, DIM, PLAIN, Paint, aligned
from command_kit.progress import spoken_duration
from command_kit.settings import Removed, read_toml
from webtext_prep import storage
from webtext_prep.cli import find_stages
from webtext_prep.commands import Command
from webtext_prep.documents.folders import sampling, stage_record, url_lists
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import about, readable
from webtext_prep.running.settings import read_table
from webtext_prep.running.stage import Stage
from webtext_prep.running.summary import Findings
from webtext_prep.stages.download import Download
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import host_of


@dataclass(frozen=True)
class PlanCommand(Command):
    """Say what the stages of a pipeline will take and leave: hours, memory, disk, documents after each stage.

    The stages are the tables of a pipeline's file (--config), or without one all from a list of URLs to token files.
    A few MiB of the input are read, and nothing runs: the figures are those that each stage states before it starts.
    Writes plan.json; `webtext report` compares it with what happened."""

    name: ClassVar[str] = "plan"
    order: ClassVar[int] = 15
    summary: ClassVar[str] = "an input -> what a pipeline will take and leave"
    has_settings_file: ClassVar[bool] = False

    REMOVED: ClassVar[Mapping[str, Removed]] = dict.fromkeys(
        ("sample", "at_least", "at_most"),
        Removed("a plan runs no stage any more; run the pipeline on a short list to see what it drops"),
    )

    input: tuple[str, ...] = setting((), "what the first stage is to read: files, folders, globs", metavar="PATH")
    output: str = setting("", "a folder for plan.json", metavar="DIR")
    config: str = setting("", "the file of a pipeline, whose tables are the stages to plan", metavar="FILE.toml")
    workers: int = setting(0, "tasks at once to plan for, on cores like these; 0 means this machine's cores", ge=0)

    def __post_init__(self) -> None:
        if not self.output:
            raise InputError("webtext plan needs --output DIR: say where plan.json goes.")

    def find(self) -> Findings:
        """Make and write the plan. Raises InputError for input that is not there."""
        tables = read_toml(self.config) if self.config else {name: {} for name in OF_A_LIST}
        stages = stages_of(tables, find_stages(), self.config or "the default pipeline")
        given = self.input or stages[0][1].input
        if not given:
            raise InputError("webtext plan needs --input PATH: say what the first stage is to read.")
        workers = self.workers or available_cores()
        plan = make_plan([stage for stage, _ in stages], given, self.config, workers)
        path = Path(self.output) / NAME
        values = {"version": VERSION, **asdict(plan)}
        write_json(path, values)
        return Findings(f"{shown(plan, Paint.of(sys.stdout))}\n\nplan: {path}", values | {"output": str(path)})


NAME = "plan.json"
VERSION = 3
OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""The plan without a file: the stages from a list of URLs to token files, with their defaults."""
HOSTS_OF = 1_000_000
"""URLs of a list that are read for its busiest host."""
TOKEN_BYTES = 2


@dataclass(frozen=True)
class Expected:
    """The expectation for one stage over the whole input.

    Attributes:
        stage: its name.
        unit: what it counts.
        read: how many come in,
        kept: and are left.
        seconds: how long it takes, with `CorpusPlan.workers` tasks at once.
        memory: bytes, with all tasks at once, at most.
        output: bytes of what it writes,
        scratch: and of its files between phases, at their most.
        tokens: in the token files, 0 for a stage that makes none.
    """

    stage: str
    unit: str
    read: int
    kept: int
    seconds: float
    memory: int
    output: int
    scratch: int
    tokens: int = 0


@dataclass(frozen=True)
class CorpusPlan:
    """A whole plan.

    Attributes:
        input: what was given.
        config: the pipeline's file, "" without one.
        workers: tasks at once.
        stages: one after the other.
        notes: on what the numbers rest, in sentences.
    """

    input: tuple[str, ...]
    config: str
    workers: int
    stages: tuple[Expected, ...]
    notes: tuple[str, ...]


def stages_of(tables: Mapping[str, Any], known: Mapping[str, type[Stage]], where: str) -> list[tuple[Stage, Any]]:
    """The stages among the tables, in their order, with their settings. Raises InputError naming table and key."""
    found: list[tuple[Stage, Any]] = []
    for name in filter(known.__contains__, tables):  # others are of another program, or only look
        try:
            stage, run, _ = read_table(known[name], tables[name], f"{where} [{name}]")
        except UsageError as error:
            raise InputError(str(error)) from None
        if found and run.input:
            raise InputError(
                f"{where} [{name}] names an input of its own, and a plan follows one input from stage to stage: leave "
                "it out."
            )
        found.append((stage, run))
    if not found:
        raise InputError(f"{where} has no table of a stage, such as [clean]: give the file of a pipeline.")
    return found


def make_plan(stages: Sequence[Stage], given: Sequence[str], config: str, workers: int) -> CorpusPlan:
    """A plan for an input.

    Args:
        stages: the planned ones, see `stages_of`.
        given: the input.
        config: the pipeline's file, "" without one.
        workers: tasks at once that are planned for.

    Raises InputError for an input that is not there.
    """
    first = stages[0].reads
    files, _ = first.find(given)
    sample = sampling.take_sample(files, storage.sizes(files), is_one_document=first.is_one_document)
    documents = stage_record.recorded_documents(files)
    sample = sample if documents is None else dataclasses.replace(sample, documents=documents)
    made: dict[str, sampling.Sample] = {"documents": sample}
    found: list[Expected] = []
    notes = ["of ten URLs six give a page; what else stages drop of yours is not known before, and planned for"]
    for stage in stages:
        reads_tokens = "tokens" in made and stage.reads.accepts(Path("corpus.idx"))
        rescued = made.pop("pages", None) if stage.reads.accepts(Path("pages.warc.gz")) else None
        needs = stage.needs(rescued or made["tokens" if reads_tokens else "documents"], workers)
        seconds, tokens = needs.seconds / workers, 0
        notes += [f"{stage.name}: {sentence}" for sentence in needs.others]
        if stage.writes.made == "tokens":
            tokens = needs.text // TOKEN_BYTES
            notes.append(f"{about(tokens)} tokens in the token files")
        if isinstance(stage, Download) and first.accepts(Path("a.urls")):
            host, share = _busiest_host(files)
            pages = round(share * needs.documents)
            seconds = max(seconds, pages * stage.delay)
            notes.append(
                f"download: {host} has some {about(pages)} pages, {stage.delay:g} s apart; a slow network, and pauses "
                "that servers ask for, come on top"
            )
        if stage.writes.made in ("documents", "pages", "tokens"):
            beside = made["documents"] if rescued is not None else sampling.Sample()
            made[stage.writes.made] = needs.as_input() + beside
        sizes = (needs.memory, needs.output, needs.scratch)
        found.append(Expected(stage.name, stage.reads.unit, needs.documents, needs.kept, seconds, *sizes, tokens))
    return CorpusPlan(tuple(given), config, workers, tuple(found), tuple(notes))


def _busiest_host(files: Sequence[Location]) -> tuple[str, float]:
    """The host with the most pages in lists of URLs, and its share of them."""
    rows = itertools.islice(itertools.chain.from_iterable(map(url_lists.read_urls, files)), HOSTS_OF)
    hosts = Counter(host_of(row.url) for row in rows)
    host, count = min(hosts.items(), key=lambda item: (-item[1], item[0]), default=("", 0))
    return host, count / max(1, hosts.total())


def read_plan(given: str | Path) -> CorpusPlan:
    """A plan by its file, or the folder that holds it. Raises InputError if there is none, or a damaged one."""
    path = Path(given)
    path = path / NAME if path.is_dir() else path
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"can't read the plan {path} ({error}): give the folder or the plan.json that `webtext plan` wrote."
        ) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise InputError(f"{path} is no plan of this version of webtext: run `webtext plan` again.")
    try:
        return msgspec.convert(values, CorpusPlan)
    except msgspec.ValidationError as error:
        raise InputError(f"the plan {path} is damaged ({error}): run `webtext plan` again.") from error


def find_plan(places: Sequence[Path]) -> Path | None:
    """A plan that lies next to finished outputs: in the folder that holds them, or in `plan` there."""
    folders = dict.fromkeys(place.parent for place in places)
    candidates = (candidate for folder in folders for candidate in (folder / "plan" / NAME, folder / NAME))
    return next(filter(Path.is_file, candidates), None)


def shown(plan: CorpusPlan, paint: Paint = PLAIN) -> str:
    """The plan as people read it: a line a stage, all of them, and on what the numbers rest."""
    head = f"With {plan.workers} tasks at once, about:"
    rows = [["stage", "left", "", "time", "memory", "output", "between phases"]]
    for stage in plan.stages:
        sizes = [readable(size) if size else "" for size in (stage.memory, stage.output, stage.scratch)]
        rows.append([stage.stage, about(stage.kept), stage.unit, spoken_duration(stage.seconds), *sizes])
    memory, scratch = (max(getattr(stage, name) for stage in plan.stages) for name in ("memory", "scratch"))
    sizes = [readable(size) for size in (memory, sum(stage.output for stage in plan.stages), scratch)]
    rows.append(["all", "", "", spoken_duration(sum(stage.seconds for stage in plan.stages)), *sizes])
    names, *table, total = aligned(rows, "<><>>>>")
    lines = [paint(head, BOLD), "", *(f"  {line}" for line in (paint(names, DIM), *table, paint(total, BOLD))), ""]
    for note in plan.notes:
        lines += textwrap.wrap(f"{note}.", 110, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)

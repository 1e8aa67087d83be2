"""A plan, from the input to its numbers: the sample, each stage on it, and what follows for the whole.

The stages are the tables of a pipeline's file, each reading what the one before it wrote. Only what matters for a
sample is wired here: stages, not training or reports. Where tasks run, and how many at once, is no part of it: the
sample runs on this machine.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.machine import Machine
from webtext_audit.plan import sample as sampling
from webtext_audit.plan.extrapolation import busiest_host, expected, notes_on
from webtext_audit.plan.plan_file import Expected, Plan
from webtext_audit.plan.profiling import Measured, Measurements, Run, inputs_of, run_webtext
from webtext_audit.plan.sample import Sample
from webtext_prep import storage
from webtext_prep.documents.folders.sampling import take_sample
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError
from webtext_prep.running.chain import Chain, Link, read_table
from webtext_prep.running.outputs.ownership import locked
from webtext_prep.running.preflight import readable
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Stage
from webtext_prep.stages.download import Download
from webtext_prep.urls.urls import host_of

OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""What is planned without a file: the stages from a list of URLs to token files, with their defaults."""


def stages_of(
    tables: Mapping[str, Any], known: Mapping[str, type[Stage]], where: str
) -> list[tuple[Stage, RunSettings]]:
    """The stages among the tables, in their order, with their settings. Raises InputError naming table and key."""
    found: list[tuple[Stage, RunSettings]] = []
    for name, table in tables.items():
        if name not in known:
            continue  # of another program, or a command that only looks
        try:
            stage, run, _ = read_table(known[name], table, f"{where} [{name}]")
            check_format(run.format or stage.default_format)
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


def linked(stages: Sequence[tuple[Stage, RunSettings]], sample: Sequence[str], folder: Path) -> list[Link]:
    """The stages one behind the other: the first reads `sample`, each writes into `folder`."""
    chain = Chain(sample, "")
    for number, (stage, run) in enumerate(stages, 1):
        name = "corpus" if stage.output_is_prefix else stage.name
        here = RunSettings(keep_dropped=run.keep_dropped, format=run.format or stage.default_format)
        chain.add(stage, here, str(folder / f"{number}-{name}"))
    return chain.links


class Planner:
    """Makes a plan.

    Args:
        stages: what is planned, see `stages_of`.
        folder: where the sample, what the stages make of it, and what was measured lie.
        share: of the input, up to 1.
        at_least, at_most: rows of the sample.
        workers: tasks at once that are planned for.
        run: runs a command; `run_webtext` by default.
        machine: what there is of disk and memory.
    """

    def __init__(
        self,
        stages: Sequence[tuple[Stage, RunSettings]],
        folder: Path,
        *,
        share: float,
        at_least: int,
        at_most: int,
        workers: int,
        run: Run | None = None,
        machine: Machine | None = None,
    ) -> None:
        self._stages, self._folder, self._workers = list(stages), folder, workers
        self._run = run or run_webtext
        self._share, self._at_least, self._at_most = share, at_least, at_most
        self._machine = machine or Machine()

    def plan(self, given: Sequence[str], config: str) -> Plan:
        """The plan for an input. Raises InputError for one that is not there, WebtextError where a stage fails."""
        with locked(self._folder, self._folder):
            sample = sampling.take(
                given,
                self._stages[0][0],
                self._folder / "sample",
                share=self._share,
                at_least=self._at_least,
                at_most=self._at_most,
            )
            stages = [(_for_sample(stage, sample.scale), run) for stage, run in self._stages]
            links = linked(stages, sample.files, self._folder / "stages")
            self._announce(links, sample)
            measurements = Measurements(self._folder, sample.key, self._run)
            measured: list[Measured] = []
            keys: list[str] = []
            for at, link in enumerate(links):
                self._say(f"{link.name} on the sample ({at + 1} of {len(links)})")
                found, key = measurements.measure(link, keys[link.reads] if link.reads >= 0 else "")
                measured.append(found)
                keys.append(key)
        return self._of(links, measured, sample, given, config)

    def _of(
        self, links: Sequence[Link], measured: Sequence[Measured], sample: Sample, given: Sequence[str], config: str
    ) -> Plan:
        stages: list[Expected] = []
        host, pages = "", 0
        for link, found in zip(links, measured, strict=True):
            busiest = 0.0
            if isinstance(link.stage, Download) and sample.hosts:
                busiest, host, pages = _busiest(link, found, sample)
            files = inputs_of(link)
            sizes = storage.sizes(files)
            one = link.stage.is_one_document
            contents = take_sample(files, sizes, format_name=link.run.format, is_one_document=one)
            before = stages[link.reads] if link.reads >= 0 else None
            stages.append(expected(link, found, contents, sample, self._workers, before=before, busiest=busiest))
        plan = Plan(
            tuple(given),
            config,
            self._workers,
            f"{self._workers} cores like this machine's",
            sample.unit,
            sample.rows,
            sample.total,
            sample.scale,
            sum(one.usage.wall for one in measured),
            tuple(stages),
            (),
        )
        notes = notes_on(links, measured, stages, sample, host, pages)
        return dataclasses.replace(plan, notes=(*notes, *self._too_much(plan)))

    def _too_much(self, plan: Plan) -> list[str]:
        """What does not fit this machine."""
        notes = []
        disk, memory = self._machine.disk_of(self._folder), self._machine.available_memory()
        if disk is not None and plan.disk > disk.free:
            notes.append(f"disk: {readable(plan.disk)} are needed, and {readable(disk.free)} are free here")
        if memory is not None and plan.memory > memory:
            stage = max(plan.stages, key=lambda stage: stage.memory)
            notes.append(
                f"memory: {stage.stage} needs {readable(stage.memory)} with {plan.workers} tasks at once, and "
                f"{readable(memory)} are available here: give it fewer --workers"
            )
        return notes

    def _announce(self, links: Sequence[Link], sample: Sample) -> None:
        names = ", ".join(link.name for link in links)
        self._say(f"{sample.rows:,} of {sample.total:,} {sample.unit} ({1 / sample.scale:.2%}) go through {names}")
        for link in links:
            if isinstance(link.stage, Download):
                robots = "robots.txt is obeyed" if link.stage.robots else "robots.txt is not asked for"
                self._say(
                    f"download fetches the pages of the sample from their servers, each once; {robots}, and requests "
                    f"to one host are {link.stage.delay:g} s apart"
                )

    @staticmethod
    def _say(sentence: str) -> None:
        print(f"plan: {sentence}", file=sys.stderr, flush=True)


def _for_sample(stage: Stage, scale: float) -> Stage:
    """The stage as it runs on the sample: a limit of URLs is one of all of them."""
    if isinstance(stage, Download) and stage.max_urls:
        return dataclasses.replace(stage, max_urls=math.ceil(stage.max_urls / scale))
    return stage


def _busiest(link: Link, found: Measured, sample: Sample) -> tuple[float, str, int]:
    """See `busiest_host`."""
    assert isinstance(link.stage, Download)
    left = Counter(host_of(row.url) for file in inputs_of(link) for row in read_urls(file))
    return busiest_host(link.stage, sample, left, found.read / max(1, sample.rows))

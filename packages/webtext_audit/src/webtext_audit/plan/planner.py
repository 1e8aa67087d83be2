"""A plan, from the input to its numbers: the sample, each stage on it, and what follows for the whole.

The stages are the tables of a pipeline's file, each reading what the one before it wrote. Only what matters for a
sample is wired here: stages, not training or reports. Where tasks run, and how many at once, is no part of it: the
sample runs on this machine.

Counts, bytes and processor time grow in proportion: `scale` times the sample's, but for the time of a start. Memory and
files between phases are what the stage itself says of an input that large (`Stage.needs`). A download takes no less
than its processor time, nor than its busiest host allows. What repeats other documents grows faster than the input:
two copies are both in a sample of one in n only once in n*n, so the share found in the sample is the least there is.
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
from command_kit.progress import spoken_duration
from webtext_audit.plan.plan_file import Expected, Plan
from webtext_audit.plan.profiling import Measured, Measurements, inputs_of, run_webtext
from webtext_audit.plan.sample import FILES, Sample, take
from webtext_prep import storage
from webtext_prep.crawl.settings import ArchiveSettings
from webtext_prep.documents.folders.sampling import Sample as Contents
from webtext_prep.documents.folders.sampling import take_sample
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import is_gone
from webtext_prep.running.output import locked
from webtext_prep.running.preflight import USUAL_SHARD, readable
from webtext_prep.running.settings import Chain, Link, RunSettings, read_table
from webtext_prep.running.stage import Stage
from webtext_prep.stages.download import Download
from webtext_prep.urls.urls import host_of

OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""The plan without a file: the stages from a list of URLs to token files, with their defaults."""


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
    """The stages, one after another: the first reads `sample`, each writes into `folder`."""
    chain = Chain(sample, "")
    for number, (stage, run) in enumerate(stages, 1):
        name = "corpus" if stage.makes == "tokens" else stage.name
        here = RunSettings(keep_dropped=run.keep_dropped, format=run.format or stage.default_format)
        chain.add(stage, here, str(folder / f"{number}-{name}"))
    return chain.links


def make_plan(
    stages: Sequence[tuple[Stage, RunSettings]],
    folder: Path,
    given: Sequence[str],
    config: str,
    *,
    share: float,
    at_least: int,
    at_most: int,
    workers: int,
) -> Plan:
    """A plan for an input.

    Args:
        stages: the planned ones, see `stages_of`.
        folder: where the sample, what the stages make of it, and what was measured lie.
        given: the input.
        config: the pipeline's file, "" without one.
        share: of the input, up to 1.
        at_least, at_most: rows of the sample.
        workers: tasks at once that are planned for.

    Raises InputError for an input that is not there, WebtextError where a stage fails.
    """
    with locked(folder, folder):
        sample = take(given, stages[0][0], folder / "sample", share=share, at_least=at_least, at_most=at_most)
        for_sample = [(_for_sample(stage, sample.scale), run) for stage, run in stages]
        links = linked(for_sample, sample.files, folder / "stages")
        _announce(links, sample)
        measurements = Measurements(folder, sample.key, run_webtext)
        measured: list[Measured] = []
        keys: list[str] = []
        for at, link in enumerate(links):
            _say(f"{link.name} on the sample ({at + 1} of {len(links)})")
            found, key = measurements.measure(link, keys[link.reads] if link.reads >= 0 else "")
            measured.append(found)
            keys.append(key)
    expectations: list[Expected] = []
    host, pages, with_archives, of_archives = "", 0, list[Expected](), list[str]()
    for (stage, _), link, found in zip(stages, links, measured, strict=True):
        busiest, archives, gone = 0.0, ArchiveSettings(), 0
        if isinstance(stage, Download):
            archives = stage
            gone = round(sum(count for reason, count in found.dropped.items() if is_gone(reason)) * sample.scale)
        if isinstance(link.stage, Download) and sample.hosts:
            left = Counter(host_of(row.url) for file in inputs_of(link) for row in read_urls(file))
            busiest, host, pages = busiest_host(link.stage, sample, left, found.read / max(1, sample.rows))
        files = inputs_of(link)
        is_one = link.stage.is_one_document
        contents = take_sample(files, storage.sizes(files), format_name=link.run.format, is_one_document=is_one)
        before = expectations[link.reads] if link.reads >= 0 else None
        one = expected(link, found, contents, sample, workers, before=before, busiest=busiest)
        expectations.append(one)
        low, high = (seconds + archives.seconds(gone) for seconds in (one.seconds, one.seconds_high))
        with_archives.append(dataclasses.replace(one, seconds=low, seconds_high=high))
        of_archives += [f"{one.stage}: {sentence}" for sentence in archives.expected(gone)]
    machine, seconds = f"{workers} cores like this machine's", sum(one.usage.wall for one in measured)
    of_sample = (sample.unit, sample.rows, sample.total, sample.scale)
    plan = Plan(tuple(given), config, workers, machine, *of_sample, seconds, tuple(with_archives), ())
    notes = notes_on(links, measured, expectations, sample, host, pages)
    if of_archives:
        notes += [*of_archives, "download: the sample asked no archive: the pages that they have come on top of these"]
    return dataclasses.replace(plan, notes=(*notes, *too_much(plan, folder, Machine())))


def too_much(plan: Plan, folder: Path, machine: Machine) -> list[str]:
    """What of a plan does not fit a machine."""
    notes = []
    disk, memory = machine.disk_of(folder), machine.available_memory()
    if disk is not None and plan.disk > disk.free:
        notes.append(f"disk: {readable(plan.disk)} are needed, and {readable(disk.free)} are free here")
    if memory is not None and plan.memory > memory:
        stage = max(plan.stages, key=lambda stage: stage.memory)
        notes.append(
            f"memory: {stage.stage} needs {readable(stage.memory)} with {plan.workers} tasks at once, and "
            f"{readable(memory)} are available here: give it fewer --workers"
        )
    return notes


def _announce(links: Sequence[Link], sample: Sample) -> None:
    names = ", ".join(link.name for link in links)
    _say(f"{sample.rows:,} of {sample.total:,} {sample.unit} ({1 / sample.scale:.2%}) go through {names}")
    for link in links:
        if isinstance(link.stage, Download):
            robots = "robots.txt is obeyed" if link.stage.robots else "robots.txt is not asked for"
            _say(
                f"download fetches the pages of the sample from their servers, each once; {robots}, and requests "
                f"to one host are {link.stage.delay:g} s apart"
            )


def _say(sentence: str) -> None:
    print(f"plan: {sentence}", file=sys.stderr, flush=True)


def _for_sample(stage: Stage, scale: float) -> Stage:
    """The stage as it runs on the sample: a limit of URLs is one of all of them, and archives are not asked."""
    if not isinstance(stage, Download):
        return stage
    return dataclasses.replace(stage, archive=(), max_urls=math.ceil(stage.max_urls / scale))


# From the sample to the whole


DEVIATIONS = 1.96
"""Standard deviations within which 95 cases of 100 are."""
RULE_OF_THREE = 3.0
"""Where none was seen, this many are expected at most, in 95 cases of 100: Hanley and Lippman-Hand (1983)."""


def expected(
    link: Link,
    measured: Measured,
    contents: Contents,
    sample: Sample,
    workers: int,
    *,
    before: Expected | None = None,
    busiest: float = 0.0,
) -> Expected:
    """What to expect of one stage over the whole input.

    Args:
        link: the stage.
        measured: what it did with the sample.
        contents: of the files that it read of the sample.
        sample: the sample of the input.
        workers: tasks at once.
        before: the expectation for the stage whose output it reads.
        busiest: seconds that the pages of the host with the most of them take, of a download.
    """
    scale, stage = sample.scale, link.stage
    cpu = measured.start + (measured.usage.cpu - measured.start) * scale
    needs = stage.needs(_scaled(contents, measured.read, scale), workers)
    kept = round(measured.kept * scale)
    more_duplicates = _more_duplicates(link, measured, scale)
    if before is not None:
        more_duplicates = max(more_duplicates, before.more_duplicates * kept / max(1, before.kept))
    margin = _margin(measured.kept, sample)
    quickest = max(cpu / workers, busiest)
    slowest = quickest
    if isinstance(stage, Download):  # the network gives no more than it gave the sample, whose end was one slow page
        slowest = max(quickest, measured.usage.wall * scale)
    return Expected(
        stage.name,
        stage.unit,
        round(measured.read * scale),
        kept,
        max(measured.kept, round(kept - margin - more_duplicates)),
        round(kept + margin),
        quickest,
        slowest,
        cpu,
        max(needs.memory, measured.usage.memory * workers),
        round(measured.bytes_out * scale),
        needs.scratch,
        "host" if busiest > cpu / workers else "processor",
        round(measured.facts.get("tokens", 0) * scale) if stage.makes == "tokens" else 0,
        more_duplicates,
    )


def _scaled(contents: Contents, rows: int, scale: float) -> Contents:
    more = {name: round(getattr(contents, name) * scale) for name in ("size", "largest", "text", "packed", "written")}
    more["largest"] = min(more["largest"], max(USUAL_SHARD, contents.largest))
    return dataclasses.replace(
        contents, files=max(1, round(contents.files * scale)), documents=round(rows * scale), **more
    )


def _margin(kept: int, sample: Sample) -> float:
    """How far off a count may be since other rows might have been chosen, in 95 cases of 100 (the binomial's normal
    approximation, for a finite whole). Whole files differ by nobody knows how much: 0."""
    if sample.unit == FILES or kept > sample.rows:
        return 0.0
    share = kept / max(1, sample.rows)
    return DEVIATIONS * math.sqrt(kept * (1 - share) * (1 - sample.share)) * sample.scale


def _more_duplicates(link: Link, measured: Measured, scale: float) -> float:
    """How many more documents may repeat others than in proportion: if each pair of the sample stands alone."""
    reasons = link.stage.grows_with_corpus
    if not reasons or scale <= 1:
        return 0.0
    found = sum(measured.dropped.get(reason, 0) for reason in reasons)
    most = max(float(found), RULE_OF_THREE) * scale**2
    return min(most - found * scale, measured.kept * scale)


def busiest_host(
    stage: Download, sample: Sample, in_download: Mapping[str, int], kept_of_others: float
) -> tuple[float, str, int]:
    """The host whose pages take the longest, by the pauses between them.

    Args:
        stage: the download with its settings.
        sample: of the list: it holds the busiest hosts.
        in_download: URLs of the sample by host that are left for the download.
        kept_of_others: the share of the sample's URLs that are left, for hosts of which the sample has none.

    Returns seconds, the host, and its pages.
    """
    found = (0.0, "", 0)
    for host, (total, sampled) in sample.hosts.items():
        share = in_download.get(host, 0) / sampled if sampled else kept_of_others
        pages = math.ceil(total * share)
        if pages and (seconds := pages * stage.delay) > found[0]:
            found = (seconds, host, pages)
    return found


def notes_on(
    links: Sequence[Link],
    measured: Sequence[Measured],
    stages: Sequence[Expected],
    sample: Sample,
    host: str,
    pages: int,
) -> list[str]:
    """On what the numbers rest, in sentences."""
    notes: list[str] = []
    for link, found, one in zip(links, measured, stages, strict=True):
        if isinstance(link.stage, Download):
            busy = f"{host} has some {pages:,} pages, {link.stage.delay:g} s apart, "
            notes.append(
                f"download: {busy if one.bound == 'host' else ''}at most {spoken_duration(one.seconds_high)} if the "
                "network gives no more pages a second than it gave the sample; pauses that servers ask for come on top"
            )
        if link.stage.grows_with_corpus and sample.scale > 1:
            share = sum(found.dropped.get(reason, 0) for reason in link.stage.grows_with_corpus) / max(found.read, 1)
            notes.append(
                f"{one.stage}: {share:.1%} of the sample repeat others. There are more in the whole, since two copies "
                f"are both in the sample only once in {sample.scale**2:,.0f} times: all after it is counted as if "
                "there were not"
            )
        if found.is_mostly_start:
            notes.append(
                f"{one.stage}: the sample was too small to tell its work from its start, so that its time is a guess: "
                "give a larger --at-least"
            )
    return notes

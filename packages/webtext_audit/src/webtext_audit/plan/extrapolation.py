"""From what the stages took for the sample to what they will take for all: the arithmetic of a plan, without any runs.

Counts, bytes and processor time grow in proportion: `scale` times the sample's, but for the time of a start. Memory and
files between phases are what the stage itself says of an input that large (`Stage.needs`). A download takes no less
than its processor time, nor than its busiest host allows. What repeats other documents grows faster than the input:
two copies are both in a sample of one in n only once in n*n, so the share found in the sample is the least there is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from command_kit.progress import spoken_duration
from webtext_audit.plan.plan_file import Expected
from webtext_audit.plan.profiling import Measured
from webtext_audit.plan.sample import FILES, Sample
from webtext_prep.documents.folders.sampling import Sample as Contents
from webtext_prep.running.preflight import USUAL_SHARD
from webtext_prep.running.settings import Link
from webtext_prep.stages.download import Download

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

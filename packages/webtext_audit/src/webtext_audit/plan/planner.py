"""A plan, from the input to its numbers: the sample, each stage on it, and what follows for the whole.

The stages are the tables of a pipeline's file, each reading what the one before it wrote; each runs on the sample as a
process of its own. Counts, bytes and processor time grow in proportion, but for the time of a start: so a stage that
reads documents also runs on a twentieth of its input, and the difference is the work. Memory and files between phases
are what the stage itself says of an input that large (`Stage.needs`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import UsageError, read_json, write_json, write_text
from command_kit.command import PARENT
from command_kit.progress import spoken_duration
from command_kit.settings import as_table, to_toml
from webtext_audit.plan.plan_file import CorpusPlan, Expected, about
from webtext_audit.plan.sample import SMALL_SEED, ChosenSample, reads_documents, take, url_hash, write_rows
from webtext_prep import storage
from webtext_prep.documents.folders.sampling import take_sample
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.markers import digest
from webtext_prep.running.output import locked
from webtext_prep.running.preflight import USUAL_SHARD
from webtext_prep.running.settings import Chain, Link, RunSettings, read_table
from webtext_prep.running.stage import Stage
from webtext_prep.stages.download import Download
from webtext_prep.storage import location
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import host_of

OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""The plan without a file: the stages from a list of URLs to token files, with their defaults."""
REPEATS = {"urls": "duplicate_url", "dedup": "duplicate", "dedup-passages": "repeated"}
"""The reason of each stage that a larger corpus has a larger share of: what repeats other documents."""
ONE_IN = 20
"""Of the rows of a stage's input, for the small run that shows how long a start takes."""
TOKENIZER = ".tokenizer.json"
"""Lies next to token files, and is as large for any corpus."""


def stages_of(
    tables: Mapping[str, Any], known: Mapping[str, type[Stage]], where: str
) -> list[tuple[Stage, RunSettings]]:
    """The stages among the tables, in their order, with their settings. Raises InputError naming table and key."""
    found: list[tuple[Stage, RunSettings]] = []
    for name in filter(known.__contains__, tables):  # others are of another program, or only look
        try:
            stage, run, _ = read_table(known[name], tables[name], f"{where} [{name}]")
            check_format(run.format or stage.writes.format)
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


def make_plan(
    stages: Sequence[tuple[Stage, RunSettings]], folder: Path, given: Sequence[str], config: str, workers: int,
    *, share: float, at_least: int, at_most: int,
) -> CorpusPlan:  # fmt: skip
    """A plan for an input.

    Args:
        stages: the planned ones, see `stages_of`.
        folder: where the sample, what the stages make of it, and what was measured lie.
        given: the input.
        config: the pipeline's file, "" without one.
        workers: tasks at once that are planned for.
        share: of the input that the sample has, up to 1.
        at_least, at_most: rows of the sample.

    Raises InputError for an input that is not there, WebtextError where a stage fails.
    """
    files, _ = stages[0][0].reads.find(given, folder)
    with locked(folder, folder):
        sample = take(files, stages[0][0], folder / "sample", share, at_least, at_most)
        links = _linked(stages, sample, folder / "stages")
        names = ", ".join(link.name for link in links)
        _say(f"{sample.rows:,} of {sample.total:,} {sample.unit} ({1 / sample.scale:.2%}) go through {names}")
        found: list[Expected] = []
        notes: list[str] = []
        seconds, key = 0.0, digest([[str(file) for file in files], storage.stamps(files), share, at_least, at_most])
        for link in links:
            key = digest([key, _settings_of(link), link.run.format])
            did = _measured(link, key, folder)
            seconds += did["seconds"]
            found.append(_expected(link, did, sample.scale, workers))
            notes += _notes(link, did, found[-1], sample.scale)
    of_sample = (sample.unit, sample.rows, sample.total, sample.scale)
    return CorpusPlan(tuple(given), config, workers, *of_sample, seconds, tuple(found), tuple(notes))


def _linked(stages: Sequence[tuple[Stage, RunSettings]], sample: ChosenSample, folder: Path) -> list[Link]:
    """The stages, one after another: the first reads the sample, each writes into `folder`."""
    chain = Chain(sample.files, "")
    for number, (stage, run) in enumerate(stages, 1):
        if isinstance(stage, Download):  # a limit is one of all URLs, and archives are not asked for a sample
            stage = dataclasses.replace(stage, archive=(), max_urls=math.ceil(stage.max_urls / sample.scale))
        name = "corpus" if stage.writes.made == "tokens" else stage.name
        here = RunSettings(format=run.format or stage.writes.format)
        chain.add(stage, here, str(folder / f"{number}-{name}"))
    return chain.links


# A stage on the sample


def _measured(link: Link, key: str, folder: Path) -> dict[str, Any]:
    """What a stage said of the sample (its summary), and what it took: `cpu`, `start`, `seconds`, `memory`, `bytes`.

    Kept in `measured.json` by `key`, so that a plan that was interrupted goes on with the next stage. Raises
    WebtextError where the stage fails, with its exit code.
    """
    kept = read_json(folder / "measured.json") or {}
    if key in kept:
        return dict(kept[key])
    more = ": its pages are fetched from their servers, each once" if isinstance(link.stage, Download) else ""
    _say(f"{link.name} on the sample{more}")
    settings = folder / f"{Path(link.run.output).name}.toml"
    write_text(settings, _settings_of(link))
    did, code = run_webtext(_arguments(link, settings))
    if code:
        failure = WebtextError(
            f"`webtext {link.name}` ended with exit code {code} on the sample: fix what it says above, or give a "
            "larger --at-least if the sample is too small for it, then run the same command again."
        )
        failure.exit_code = code if code > 0 else 1
        raise failure
    outputs = link.stage.writes.files_in(location(link.run.output))
    did["bytes"] = sum(storage.sizes([file for file in outputs if not file.name.endswith(TOKENIZER)]))
    did["start"] = 0.0
    if reads_documents(link.stage) and not link.is_beside and did["in"] >= 10 * ONE_IN:
        place = folder / "small" / "part-00000.jsonl"
        rows = write_rows(_inputs(link), link.stage, place, lambda url: url_hash(url, SMALL_SEED) % ONE_IN == 0)
        run = dataclasses.replace(link.run, input=(str(place),), output=str(folder / "small" / link.name))
        small, code = run_webtext(_arguments(dataclasses.replace(link, run=run), settings), is_quiet=True)
        if not code:  # it fails where nothing of so little was kept
            of_a_row = max(0.0, did["cpu"] - small["cpu"]) / (did["in"] - rows)
            did["start"] = max(0.0, small["cpu"] - rows * of_a_row)
    write_json(folder / "measured.json", kept | {key: did})
    return did


def run_webtext(arguments: Sequence[str], *, is_quiet: bool = False) -> tuple[dict[str, Any], int]:
    """Run `webtext` with such arguments; a signal to stop is passed on.

    Returns the JSON object that it printed, with what it and its processes took: `cpu` and `seconds`, and `memory`, the
    bytes of the largest of them; and its exit code. What it says of its progress is shown unless `is_quiet`.
    """
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "webtext_prep", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL if is_quiet else None,
            env=os.environ | {PARENT: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches it once: from here
        )
        try:
            _, status, used = os.wait4(process.pid, 0)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        lines = output.read().splitlines()
    summary = json.loads(lines[-1]) if lines and not process.returncode else {}
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    took = {"cpu": used.ru_utime + used.ru_stime, "seconds": time.monotonic() - start, "memory": memory}
    return summary | took, process.returncode


def _settings_of(link: Link) -> str:
    return to_toml({link.name: as_table(link.stage)})


def _arguments(link: Link, settings: Path) -> list[str]:
    """The words after `webtext` that run a stage here; `settings` is written for it."""
    words = [link.name, "--config", str(settings), "--input", *link.run.input, "--workers", "1", "--json", "--restart"]
    words += [] if link.is_beside else ["--output", link.run.output]
    return words + (["--format", link.run.format] if link.run.format != link.stage.writes.format else [])


def _inputs(link: Link) -> list[Location]:
    return link.stage.reads.find(link.run.input)[0]


def _say(sentence: str) -> None:
    print(f"plan: {sentence}", file=sys.stderr, flush=True)


# From the sample to the whole


def _expected(link: Link, did: Mapping[str, Any], scale: float, workers: int) -> Expected:
    """What to expect of one stage over the whole input."""
    stage, files = link.stage, _inputs(link)
    contents = take_sample(
        files, storage.sizes(files), format_name=link.run.format, is_one_document=stage.reads.is_one_document
    )
    sizes = {name: round(getattr(contents, name) * scale) for name in ("size", "largest", "text", "packed", "written")}
    sizes["largest"] = min(sizes["largest"], max(USUAL_SHARD, contents.largest))
    count = {"files": max(1, round(contents.files * scale)), "documents": round(did["in"] * scale)}
    needs = stage.needs(dataclasses.replace(contents, **sizes, **count), workers)
    seconds = (did["start"] + (did["cpu"] - did["start"]) * scale) / workers
    if isinstance(stage, Download):
        seconds = max(seconds, _busiest_host(files)[1] * scale * stage.delay)
    read, kept, output = (round(did[name] * scale) for name in ("in", "out", "bytes"))
    memory, tokens = max(needs.memory, did["memory"] * workers), did["tokens"] if stage.writes.made == "tokens" else 0
    return Expected(
        stage.name, stage.reads.unit, read, kept, seconds, memory, output, needs.scratch, round(tokens * scale)
    )


def _busiest_host(files: Sequence[Location]) -> tuple[str, int]:
    """The host with the most pages in lists of URLs, and their number."""
    hosts = Counter(host_of(row.url) for file in files for row in read_urls(file))
    return min(hosts.items(), key=lambda item: (-item[1], item[0]), default=("", 0))


def _notes(link: Link, did: Mapping[str, Any], one: Expected, scale: float) -> list[str]:
    """On what the numbers of a stage rest, in sentences."""
    notes: list[str] = []
    if isinstance(link.stage, Download):
        host, pages = _busiest_host(_inputs(link))
        notes.append(
            f"download: {host} has some {about(round(pages * scale))} pages, {link.stage.delay:g} s apart; it takes "
            f"{spoken_duration(did['seconds'] * scale)} if the network gives no more pages a second than it gave the "
            "sample; pauses that servers ask for, and archives, come on top"
        )
    if refused := did.get("dropped", {}).get("opted_out", 0):
        notes.append(
            f"{one.stage}: {refused / did['in']:.1%} of the pages are left out, as their owners refuse training"
        )
    if one.stage in REPEATS and scale > 1:
        repeated = did.get("dropped", {}).get(REPEATS[one.stage], 0)
        notes.append(
            f"{one.stage}: {repeated / max(did['in'], 1):.1%} of the sample repeat others. More of the whole will: two "
            f"copies are both in the sample only once in {scale**2:,.0f} times"
        )
    if did["start"] > 0.75 * did["cpu"]:
        notes.append(f"{one.stage}: the sample was too small to tell its work from its start: give a larger --at-least")
    return notes + ([f"{about(one.tokens)} tokens in the token files"] if one.tokens else [])

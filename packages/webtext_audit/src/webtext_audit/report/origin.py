"""Where a corpus comes from: the funnel, the figures that matter most, how each step was run, and what was planned."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from command_kit import duration, hide_credentials
from command_kit.charts import drawing
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import brief, count, share, short
from command_kit.progress import spoken_duration
from webtext_audit.commands.plan import CorpusPlan, Expected
from webtext_audit.report.collect import Gathered, ReportedCorpus
from webtext_audit.report.funnel import Level, draw_funnel
from webtext_audit.report.templates import filled
from webtext_audit.report.training import PIPELINE, bits_per_byte
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX, Step, all_steps
from webtext_prep.running.estimates import about, readable

WIDE, NARROW, ALONE = 960, 350, 680
"""Widths of the funnel in pixels: on the page for large and for small screens, and of the picture that stands alone."""
MOST_REASONS = 100
"""Of each stage in the table."""


def title_of(ends: Iterable[Step]) -> str:
    """What corpora are called: by the folder of the pipeline that made them, or else by their own."""
    names = []
    for place in (Path(end.name) for end in ends):
        of_pipeline = place.absolute().parent if (place.parent / PIPELINE).is_file() else None
        names.append(of_pipeline.name if of_pipeline else place.name.removesuffix(TOKENS_SUFFIX))
    return ", ".join(dict.fromkeys(names))


def outcome(found: Gathered) -> Iterator[str]:
    """How much of the sources is in a corpus, and what most others were dropped for, in a sentence."""
    for corpus in found.corpora[:1]:
        steps, (read, kept) = all_steps(corpus.end), _read_and_kept(corpus)
        gone = Counter[str]()
        for step in steps:
            gone.update({in_words(reason, step): n for reason, n in step.record.get("dropped", {}).items()})
        if kept < read and gone:
            ((reason, number),) = gone.most_common(1)
            unit = "URLs" if any(step.stage in ("urls", "blacklist", "download") for step in steps) else "documents"
            most = "Most others" if 2 * number > read - kept else "The largest part of the rest"
            part = "All others" if number == read - kept else most
            yield f"{share(kept, read)} of {count(read)} {unit} are in the corpus. {part}: {reason} ({count(number)})."


def _read_and_kept(corpus: ReportedCorpus) -> tuple[int, int]:
    """What its sources had, and what it has."""
    read = sum(step.record.get("in", 0) for step in all_steps(corpus.end) if not step.inputs)
    return read, corpus.end.record.get("out", 0)


def tiles(found: Gathered) -> list[tuple[str, str, str]]:
    """The figures that matter most: what each is, the figure, and a word on it."""
    entries: list[tuple[str, str, str]] = []
    for corpus in found.corpora:
        of = f" in {Path(corpus.end.name).name}" if len(found.corpora) > 1 else ""
        entries += [(f"{name}{of}", value, more) for name, value, more in _tiles_of(corpus)]
    bits = bits_per_byte(found.run.evaluation) if found.run is not None else {}
    if "this model" in bits:
        others = [f"{name} {value:.2f}" for name, value in bits.items() if name.startswith("zstd")]
        entries.append(("bits per byte, held out", f"{bits['this model']:.2f}", "".join(others[:1])))
    elif found.run is not None and found.run.valid_loss:
        loss = f"{found.run.valid_loss[-1][1]:.3f}"
        entries.append(("validation loss", loss, f"after {short(found.run.tokens)} tokens"))
    return entries


def _tiles_of(corpus: ReportedCorpus) -> Iterator[tuple[str, str, str]]:
    """Each figure of a corpus: what it is, the figure, and a word on it."""
    read, kept = _read_and_kept(corpus)
    yield "documents", brief(kept), f"{share(kept, read)} of {brief(read)} in"
    bytes_ = corpus.figures.bytes * corpus.scale
    if bytes_:
        yield "text", readable(bytes_), f"{short(corpus.figures.lengths.quantile(0.5))} characters in the median"
    tokens, is_exact = tokens_of(corpus)
    if tokens:
        each = f"{bytes_ / tokens:.2f} bytes each" if bytes_ else ""
        yield "tokens", ("" if is_exact else "≈ ") + short(tokens), each
    if len(corpus.figures.domains.names) > 1:
        names = corpus.figures.domains
        is_all = not names.is_cut and not corpus.is_sample
        yield "domains", ("" if is_all else "≥ ") + brief(len(names.names)), "" if is_all else "in what was counted"


def tokens_of(corpus: ReportedCorpus) -> tuple[float, bool]:
    """The tokens of a corpus, and whether all of them were counted."""
    if corpus.tokens is not None:
        return corpus.tokens, True
    figures = corpus.figures
    is_exact = figures.counted[0] >= figures.bytes and not corpus.is_sample
    return figures.tokens_in(figures.bytes) * corpus.scale, is_exact


def funnel(found: Gathered) -> list[Markup]:
    """The funnel, and all of its numbers."""
    drawn = chains(found.ends, found.steps)
    parts: list[Markup] = []
    gone = [step.stage for step in found.steps if step.place is None]
    if gone:
        names = ", ".join(dict.fromkeys(gone))
        note = f"The folders of {names} are gone: their rows come from the records of later steps."
        parts.append(tag("p", note, class_="note"))
    parts += [tag("p", sentence, class_="note") for sentence in found.changes]
    for chain in drawn:
        if len(drawn) > 1:
            names = " → ".join(step.stage for step in chain)
            parts.append(tag("h3", names, tag("span", _sources(chain[0]), class_="soft")))
        for width, kind in ((WIDE, "wide"), (NARROW, "narrow")):
            parts.append(draw_funnel(levels(chain), width=width, end=end_of(chain[-1]), kind=f"funnel {kind}"))
    rows = [row for step in found.steps for row in _rows(step)]
    return [*parts, drawing.table(("stage", "", "documents", "share"), rows)]


def picture(found: Gathered, style: str) -> Markup:
    """The stream that ends in the first of the given folders, as an SVG that stands alone."""
    chain = next(chain for chain in chains(found.ends, found.steps) if any(step is found.ends[0] for step in chain))
    return draw_funnel(levels(chain), width=ALONE, end=end_of(chain[-1]), style=style)


def _rows(step: Step) -> Iterator[tuple[object, ...]]:
    """The numbers of one step."""
    record = step.record
    read, kept = record.get("in", 0), record.get("out", 0)
    yield tag("b", step.stage), "in", count(read), ""
    if added := record.get("added", 0):
        yield "", "added: further pieces", count(added), share(added, read)
    dropped = sorted(record.get("dropped", {}).items(), key=lambda item: (-item[1], item[0]))
    for reason, number in dropped[:MOST_REASONS]:
        yield "", reason, count(number), share(number, read)
    if rest := sum(number for _, number in dropped[MOST_REASONS:]):
        yield "", f"{count(len(dropped) - MOST_REASONS)} other reasons", count(rest), share(rest, read)
    yield "", "kept", count(kept), share(kept, read)


def chains(ends: Sequence[Step], steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that follow each other one by one; a new chain begins where several outputs meet or part."""
    readers = Counter(id(before) for step in steps for before in step.inputs)
    found: dict[int, list[Step]] = {}
    for step in steps:
        only = step.inputs[0] if len(step.inputs) == 1 and not step.plain_files else None
        if only is not None and readers[id(only)] == 1 and not any(only is end for end in ends):
            chain = found.pop(id(only))
            chain.append(step)
        else:
            chain = [step]
        found[id(step)] = chain
    order = {id(step): at for at, step in enumerate(steps)}
    return sorted(found.values(), key=lambda chain: order[id(chain[-1])])


def levels(chain: Iterable[Step]) -> list[Level]:
    """The stages of a chain, as the picture shows them."""
    return [
        Level(
            step.stage,
            step.record.get("in", 0),
            step.record.get("out", 0),
            [(in_words(reason, step), number) for reason, number in step.record.get("dropped", {}).items()],
            step.record.get("added", 0),
        )
        for step in chain
    ]


IN_WORDS = {
    "too_short": "under {min_tokens} tokens",
    "blocked_domain": "blocked domain",
    "blocked_extension": "not a page",
    "malformed": "not a URL",
    "robots": "robots.txt",
    "not_html": "not HTML",
    "empty": "no text found",
}
"""Reasons that people meet most. All others are shown as they are recorded, without underscores."""


def in_words(reason: str, step: Step) -> str:
    """A drop reason for people; a setting that it names is that of the step."""
    if reason.startswith("http_"):
        return f"HTTP {reason.removeprefix('http_')}"
    if reason.startswith("language_"):
        return f"language {reason.removeprefix('language_')}"
    if reason == "duplicate" and step.stage == "dedup":
        return "near-duplicate"
    fewest = step.record.get("settings", {}).get("min_tokens")
    if reason == "too_short" and not isinstance(fewest, int):
        return "too short"
    return IN_WORDS.get(reason, reason.replace("_", " ")).replace("{min_tokens}", str(fewest))


def end_of(step: Step) -> str:
    """What is at the end of the stream."""
    tokens = step.record.get("facts", {}).get("tokens")
    kept = f"{count(step.record.get('out', 0))} kept"
    return f"{kept} · {short(tokens)} tokens" if isinstance(tokens, int) else kept


def _sources(step: Step) -> str:
    names = [before.stage for before in step.inputs]
    files = f"{count(step.plain_files)} file{'s' * (step.plain_files > 1)}" if step.plain_files else ""
    return f" from {', '.join([*names, *([files] if files else [])])}" if names or files else ""


def runs(found: Gathered) -> Markup:
    """Each step: settings, version, seconds, machine."""
    timed = [step for step in found.steps if isinstance(step.run.get("seconds"), int | float)]
    most = max((step.run["seconds"] for step in timed), default=0)
    times = [
        [step.stage, drawing.cell(duration(step.run["seconds"]), _rate(step), step.run["seconds"], most)]
        for step in timed
    ]
    run = None if found.run is None else {"folder": str(found.run.folder), **found.run.settings}
    steps = [(step, _about(step), _measured(step)) for step in found.steps]
    return filled("runs", times=drawing.bars(["stage", "time"], times) if times else None, steps=steps, run=run)


def _rate(step: Step) -> str:
    seconds = step.run["seconds"]
    return f"{short(step.record.get('in', 0) / seconds)} a second" if seconds else ""


def _about(step: Step) -> dict[str, Any]:
    """Where, when and by what a step was run."""
    run = step.run
    return {
        "folder": step.name if step.place is not None else f"{step.name} (gone)",
        "finished": _moment(run.get("finished_at")),
        "machine": ", ".join(str(run[key]) for key in ("host", "system") if run.get(key)),
        "Python": run.get("python"),
        "webtext": run.get("version"),
        "ran on": f"{run['engine']}, {run['workers']} at once" if run.get("engine") else None,
        "version of the stage": step.record.get("version"),
        "record (SHA-256)": step.sha256,
    }


def _measured(step: Step) -> dict[str, Any]:
    """The facts and notes of a step that are one value."""
    found = {**step.record.get("facts", {}), **step.record.get("notes", {})}
    return {name.replace("_", " "): value for name, value in found.items() if isinstance(value, int | float | str)}


def _moment(text: Any) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return f"{moment:%Y-%m-%d %H:%M} UTC"


HEAD = ("stage", "left, as planned", "left", "time, as planned", "time", "output, as planned", "output")


def comparison(plan: CorpusPlan, steps: list[Step]) -> Markup | None:
    """A row for each planned stage that has run, with the shares of what was planned; None if none has."""
    pairs = [(stage, step) for stage in plan.stages if (step := _only(steps, stage.stage)) is not None]
    if not pairs:
        return None
    given = ", ".join(map(hide_credentials, plan.input))
    note = f"Planned for {given}, with {plan.workers} tasks at once."
    first = next(((stage, step) for stage, step in pairs if stage is plan.stages[0]), None)
    more = None
    if first is not None and abs((read := first[1].record.get("in", 0)) - first[0].read) > 0.1 * read:
        more = tag("p", f"The plan was of {about(first[0].read)} {first[0].unit}, and {read:,} came in.", class_="note")
    most = max(step.record.get("out", 0) for _, step in pairs)
    longest = max(float(step.run.get("seconds", 0)) for _, step in pairs)
    largest = max((_bytes(step) or 0 for _, step in pairs), default=0)
    rows = [_row(stage, step, most, longest, largest) for stage, step in pairs]
    return join([tag("p", note, class_="note"), more, drawing.bars(HEAD, rows)])


def _only(steps: list[Step], stage: str) -> Step | None:
    """The step of a stage, if there is one and no other."""
    found = [step for step in steps if step.stage == stage]
    return found[0] if len(found) == 1 else None


def _row(stage: Expected, step: Step, most: int, longest: float, largest: int) -> list[object]:
    kept, seconds, size = step.record.get("out", 0), step.run.get("seconds"), _bytes(step)
    at_once = f"{step.run['workers']} at once" if step.run.get("workers") else ""
    return [
        stage.stage,
        about(stage.kept),
        drawing.cell(brief(kept), _of_plan(kept, stage.kept), kept, most),
        spoken_duration(stage.seconds),
        drawing.cell(spoken_duration(seconds), at_once, seconds, longest) if isinstance(seconds, int | float) else "",
        readable(stage.output),
        drawing.cell(readable(size), _of_plan(size, stage.output), size, largest) if size is not None else "",
    ]


def _of_plan(found: float, planned: float) -> str:
    return f"{found / planned:.0%} of the plan" if planned else ""


def _bytes(step: Step) -> int | None:
    """Bytes of what a step wrote, where that is a folder of this machine, or token files."""
    place = step.place
    if not isinstance(place, Path):
        return None
    if step.is_tokens:
        files = [path for path in place.parent.glob(f"{place.name}.*") if path.is_file() and path.suffix != ".json"]
    else:
        inside = [path for path in place.rglob("*") if path.is_file()]
        files = [path for path in inside if not any(part.startswith(".") for part in path.relative_to(place).parts)]
    return sum(path.stat().st_size for path in files)

"""Where a corpus comes from: the funnel, and the figures that matter most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from command_kit import charts
from command_kit.charts.markup import Markup, tag
from command_kit.charts.numbers import brief, count, share, short, size
from webtext_audit.report.collect import Corpus, Gathered
from webtext_audit.report.funnel import Level, draw_funnel
from webtext_prep.documents.folders.stage_record import Step, all_steps

WIDE, NARROW = 960, 350
"""The two widths of the funnel, in pixels."""
MOST_REASONS = 100
"""Of each stage in the table."""


def tiles(found: Gathered) -> Markup:
    """The figures that matter most."""
    entries: list[tuple[str, str, str]] = []
    for corpus in found.corpora:
        of = f" in {Path(corpus.end.name).name}" if len(found.corpora) > 1 else ""
        entries += [(f"{name}{of}", value, more) for name, value, more in _tiles_of(corpus)]
    if found.run is not None and found.run.valid_loss:
        loss = f"{found.run.valid_loss[-1][1]:.3f}"
        entries.append(("validation loss", loss, f"after {short(found.run.tokens)} tokens"))
    return tag(
        "dl",
        *(tag("div", tag("dt", name), tag("dd", value, tag("small", more))) for name, value, more in entries),
        class_="tiles",
    )


def _tiles_of(corpus: Corpus) -> Iterator[tuple[str, str, str]]:
    """Each figure of a corpus: what it is, the figure, and a word on it."""
    read = sum(step.record.get("in", 0) for step in all_steps(corpus.end) if not step.inputs)
    kept = corpus.end.record.get("out", 0)
    yield "documents", brief(kept), f"{share(kept, read)} of {brief(read)} in"
    bytes_ = corpus.figures.bytes * corpus.scale
    if bytes_:
        yield "text", size(bytes_), f"{short(corpus.figures.lengths.quantile(0.5))} characters in the median"
    tokens, is_exact = tokens_of(corpus)
    if tokens:
        each = f"{bytes_ / tokens:.2f} bytes each" if bytes_ else ""
        yield "tokens", ("" if is_exact else "≈ ") + short(tokens), each
    if corpus.figures.documents:
        names = corpus.figures.domains
        is_all = not names.is_cut and not corpus.is_sample
        yield "domains", ("" if is_all else "≥ ") + brief(len(names.names)), "" if is_all else "in what was counted"


def tokens_of(corpus: Corpus) -> tuple[float, bool]:
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
        note = f"The folders of {names} are gone: what is shown of them comes from the records of later steps."
        parts.append(tag("p", note, class_="note"))
    for chain in drawn:
        if len(drawn) > 1:
            names = " → ".join(step.stage for step in chain)
            parts.append(tag("h3", names, tag("span", _sources(chain[0]), class_="soft")))
        for width, kind in ((WIDE, "wide"), (NARROW, "narrow")):
            parts.append(draw_funnel(levels(chain), width=width, end=end_of(chain[-1]), kind=f"funnel {kind}"))
    rows = [row for step in found.steps for row in _rows(step)]
    return [*parts, charts.table(("stage", "", "documents", "share"), rows)]


def picture(found: Gathered, style: str) -> Markup:
    """The stream that ends in the first of the given folders, as an SVG that stands alone."""
    chain = next(chain for chain in chains(found.ends, found.steps) if any(step is found.ends[0] for step in chain))
    return draw_funnel(levels(chain), width=WIDE, end=end_of(chain[-1]), style=style)


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
    readers: dict[int, int] = {}
    for step in steps:
        for before in step.inputs:
            readers[id(before)] = readers.get(id(before), 0) + 1
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
            list(step.record.get("dropped", {}).items()),
            step.record.get("added", 0),
        )
        for step in chain
    ]


def end_of(step: Step) -> str:
    """What is at the end of the stream."""
    tokens = step.record.get("facts", {}).get("tokens")
    kept = f"{count(step.record.get('out', 0))} kept"
    return f"{kept} · {short(tokens)} tokens" if isinstance(tokens, int) else kept


def _sources(step: Step) -> str:
    names = [before.stage for before in step.inputs]
    files = f"{count(step.plain_files)} file{'s' * (step.plain_files > 1)}" if step.plain_files else ""
    return f" from {', '.join([*names, *([files] if files else [])])}" if names or files else ""

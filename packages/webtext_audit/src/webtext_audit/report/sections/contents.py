"""What a corpus holds: domains, lengths, languages."""

from __future__ import annotations

from typing import NamedTuple

from command_kit import charts
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count, share, short, size
from webtext_audit.report.collect import Corpus
from webtext_audit.report.counting import LogHistogram
from webtext_audit.report.sections.layout import MOST_ROWS, bars, cell
from webtext_prep.documents.folders.stage_record import all_steps


class Measured(NamedTuple):
    """What some domains have."""

    documents: float
    bytes: float
    tokens: float


def domains(corpus: Corpus) -> Markup | None:
    """Documents, bytes and tokens of the largest domains."""
    figures, scale = corpus.figures, corpus.scale
    if not figures.domains.names:
        return None
    rows = [
        (name, Measured(documents * scale, bytes_ * scale, figures.tokens_in(bytes_, *counted) * scale))
        for name, (documents, bytes_, *counted) in figures.domains.top(MOST_ROWS, by=1 if figures.bytes else 0)
    ]
    whole = Measured(figures.documents * scale, figures.bytes * scale, figures.tokens_in(figures.bytes) * scale)
    others = len(figures.domains.names) - len(rows)
    if others > 0 or figures.domains.is_cut:
        rest = Measured(*(max(0.0, whole[at] - sum(of[at] for _, of in rows)) for at in range(3)))
        rows.append((f"{'more than ' * figures.domains.is_cut}{count(others)} others", rest))
    columns = [at for at, total in enumerate(whole) if total]
    most = [max(measured[at] for _, measured in rows) for at in range(3)]
    shows = (count, size, short)
    cells = [
        [name, *(cell(shows[at](of[at]), share(of[at], whole[at]), of[at], most[at]) for at in columns)]
        for name, of in rows
    ]
    heads = ("documents", "text", "tokens")
    return join([bars(["domain", *(heads[at] for at in columns)], cells), _notes(corpus)])


def _notes(corpus: Corpus) -> Markup | None:
    """How exact the figures of domains are, where they are not."""
    figures = corpus.figures
    notes = [sample_note(corpus)]
    if figures.counted[0] and (figures.counted[0] < figures.bytes or corpus.is_sample):
        notes.append(f"Tokens follow from those in {size(figures.counted[0])} of the text.")
    if figures.domains.is_cut:
        lost = count(figures.domains.lost * corpus.scale)
        notes.append(f"Rare domains were put together: none that is shown lacks more than {lost} documents.")
    text = " ".join(filter(None, notes))
    return tag("p", text, class_="note") if text else None


def sample_note(corpus: Corpus) -> str:
    """What the figures are of, where they are not of everything."""
    if not corpus.is_sample:
        return ""
    return (
        f"Estimated from {count(corpus.figures.documents)} of {count(corpus.documents)} documents, chosen by a hash; "
        "--all reads every one."
    )


def lengths(corpus: Corpus) -> Markup | None:
    """How long the documents are."""
    parts = []
    if corpus.figures.lengths.bins:
        parts.append(_length_chart(corpus.figures.lengths, "characters", corpus.scale))
    if corpus.token_lengths is not None and corpus.token_lengths.bins:
        parts.append(_length_chart(corpus.token_lengths, "tokens", 1.0))
    return tag("div", *parts, class_="pair") if parts else None


def _length_chart(found: LogHistogram, unit: str, scale: float) -> Markup:
    columns = [(low, high, times * scale) for low, high, times in found.columns()]
    middle = found.quantile(0.5)
    head = f"{unit.capitalize()} of a document"
    spread = f"5% have at most {short(found.quantile(0.05))}; 95% have at most {short(found.quantile(0.95))}."
    rows = [(f"{short(low)} to {short(high)}", count(times)) for low, high, times in columns]
    return tag(
        "div",
        tag("h3", head),
        charts.histogram(
            columns, title=f"{head}: how many documents have how many", mark=(middle, f"median {short(middle)}")
        ),
        tag("p", f"Mean {short(found.total / max(found.count, 1))}. {spread}", class_="note"),
        charts.table((unit, "documents"), rows),
    )


def languages(corpus: Corpus) -> Markup | None:
    """The languages of what is there, and of what was dropped for its language."""
    kept = [(name, values[0] * corpus.scale, "kept") for name, values in corpus.figures.languages.top(MOST_ROWS)]
    gone: dict[str, int] = {}
    for step in all_steps(corpus.end):
        for reason, number in step.record.get("dropped", {}).items():
            if reason.startswith("language_"):
                name = reason.removeprefix("language_")
                gone[name] = gone.get(name, 0) + number
    dropped = [
        (name, float(number), "dropped") for name, number in sorted(gone.items(), key=lambda item: (-item[1], item[0]))
    ]
    rows = [*kept, *dropped[:MOST_ROWS]]
    if not rows:
        return None
    most = max(number for _, number, _ in rows)
    cells = [
        [name, cell(count(number), "kept" if kind == "kept" else "dropped", number, most, kind)]
        for name, number, kind in rows
    ]
    return bars(["language", "documents"], cells)

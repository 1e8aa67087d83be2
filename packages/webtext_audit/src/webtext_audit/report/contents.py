"""What a corpus holds, and what it lacks: domains, lengths, languages, outcomes of downloads, scores, duplicates,
examples."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import groupby, pairwise

from command_kit.charts import drawing
from command_kit.charts.drawing import Show, bars, cell
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count, share, short
from webtext_audit.report.collect import Examples, Gathered, ReportedCorpus
from webtext_audit.report.counters import GROUPS, DuplicateFigures, LogHistogram, OutcomeFigures, group_of
from webtext_audit.report.scan import SHORT_TEXT, WHOLE_PAGE
from webtext_audit.report.templates import filled
from webtext_prep.documents.folders.stage_record import Step, all_steps
from webtext_prep.running.estimates import readable

MOST_ROWS = 15
"""Rows of a table; the rest is put together."""
LOOPBACK = {"127.0.0.1", "::1", "[::1]", "localhost"}


DOCUMENTS, TEXT, TOKENS = ("documents", count), ("text", readable), ("tokens", short)
"""Columns of a table, and how their values are written."""


def _bars(
    head: str, columns: Sequence[tuple[str, Show]], rows: Sequence[tuple[str, Sequence[float]]], whole: Sequence[float]
) -> Markup:
    """A table of numbers with their shares of the whole; a column of which there is nothing is left out."""
    there = [at for at, total in enumerate(whole) if total]
    most = [max(of[at] for _, of in rows) for at in range(len(whole))]
    cells = [
        [name, *(cell(columns[at][1](of[at]), share(of[at], whole[at]), of[at], most[at]) for at in there)]
        for name, of in rows
    ]
    return bars([head, *(columns[at][0] for at in there)], cells)


def domains(corpus: ReportedCorpus) -> Markup | None:
    """Documents, bytes and tokens of the largest domains; nothing where all came from this machine."""
    figures, scale = corpus.figures, corpus.scale
    if set(figures.domains.names) <= LOOPBACK:
        return None
    rows = [
        (name, [documents * scale, bytes_ * scale, figures.tokens_in(bytes_, *counted) * scale])
        for name, (documents, bytes_, *counted) in figures.domains.top(MOST_ROWS, by=1 if figures.bytes else 0)
    ]
    whole = [figures.documents * scale, figures.bytes * scale, figures.tokens_in(figures.bytes) * scale]
    others = len(figures.domains.names) - len(rows)
    if others > 0 or figures.domains.is_cut:
        rest = [max(0.0, total - sum(of[at] for _, of in rows)) for at, total in enumerate(whole)]
        rows.append((f"{'more than ' * figures.domains.is_cut}{count(others)} others", rest))
    return join([_bars("domain", (DOCUMENTS, TEXT, TOKENS), rows, whole), _notes(corpus)])


def _notes(corpus: ReportedCorpus) -> Markup | None:
    """How exact the figures of domains are, where they are not."""
    figures, notes = corpus.figures, []
    if corpus.is_sample:
        read = f"{count(figures.documents)} of {count(corpus.documents)} documents"
        notes.append(f"Estimated from {read}, chosen by a hash; --all reads every one.")
    if figures.counted[0] and (figures.counted[0] < figures.bytes or corpus.is_sample):
        notes.append(f"Tokens were counted in {readable(figures.counted[0])} of the text.")
    if figures.domains.is_cut:
        lost = count(figures.domains.lost * corpus.scale)
        notes.append(f"Rare domains were put together: none that is shown lacks more than {lost} documents.")
    return tag("p", " ".join(notes), class_="note") if notes else None


def lengths(corpus: ReportedCorpus) -> Markup | None:
    """The lengths of the documents."""
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
        drawing.histogram(
            columns, title=f"{head}: how many documents have how many", mark=(middle, f"median {short(middle)}")
        ),
        tag("p", f"Mean {short(found.total / max(found.count, 1))}. {spread}", class_="note"),
        drawing.table((unit, "documents"), rows),
    )


def languages(corpus: ReportedCorpus) -> Markup | None:
    """The languages of the documents, and of documents dropped for their language."""
    kept = [(name, values[0] * corpus.scale, "kept") for name, values in corpus.figures.languages.top(MOST_ROWS)]
    gone = Counter[str]()
    for step in all_steps(corpus.end):
        for reason, number in step.record.get("dropped", {}).items():
            if reason.startswith("language_"):
                gone[reason.removeprefix("language_")] += number
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


def kinds(corpus: ReportedCorpus) -> Markup | None:
    """Documents and bytes of each kind of page, as the extractor tells them, and where it may have failed."""
    found = corpus.figures.kinds
    rows = [(name, [value * corpus.scale for value in values]) for name, values in found.top(MOST_ROWS)]
    if not rows:
        return None
    table = _bars("kind of page", (DOCUMENTS, TEXT), rows, [value * corpus.scale for value in found.totals()])
    return join([table, _odd_texts(corpus)])


def _odd_texts(corpus: ReportedCorpus) -> Markup:
    """The shares of pages, by language and kind, of which suspiciously little or much is text."""
    found = corpus.figures.odd
    rows = [*found.top(MOST_ROWS), ("all", found.totals())]
    scale = corpus.scale
    cells = [
        [
            name,
            count(of * scale),
            cell(count(little * scale), share(little, of), little, of, "dropped"),
            cell(count(much * scale), share(much, known), much, known, "dropped") if known else "",
        ]
        for name, (of, little, known, much) in rows
    ]
    heads = ["pages", "documents", f"under {SHORT_TEXT} characters", f"over {share(WHOLE_PAGE, 1)} of the page"]
    return bars(heads, cells)


NAMES = {
    "ok": "page with text",
    "archived": "page with text of a web archive",
    "client": "HTTP 3xx, 4xx",
    "server": "HTTP 5xx",
    "robots": "robots.txt, opt-outs",
    "network": "network",
    "content": "no usable text",
}
WITH_TEXT = GROUPS[:2]
KINDS = dict(zip(GROUPS, ("c1", "c7", "c2", "c3", "c4", "c6", "c5"), strict=True))


def outcomes(found: OutcomeFigures, taken: float) -> Markup:
    """How downloads ended; `taken` is the share of the URLs that were counted."""
    ok, archived = (found.outcomes.names.get(name, [0.0])[0] / taken for name in WITH_TEXT)
    total = found.outcomes.totals()[0] / taken
    return filled(
        "outcomes",
        good=ok + archived,
        archived=archived,
        total=total,
        legend=drawing.legend((KINDS[group], NAMES[group]) for group in _ended(found)),
        reasons=_reasons(found, taken, total),
        hosts=_hosts(found, taken),
        more=len(found.hosts.names) - MOST_ROWS,
        taken=taken,
    )


def _ended(found: OutcomeFigures) -> list[str]:
    """The groups of outcomes that there are."""
    there = {group_of(name) for name in found.outcomes.names}
    return [group for group in GROUPS if group in there]


def _reasons(found: OutcomeFigures, taken: float, total: float) -> Markup | None:
    """Every other outcome than a page: a bar for pages would hide the others."""
    rows = [(name, values[0] / taken) for name, values in found.outcomes.top(MOST_ROWS + 2) if name not in WITH_TEXT]
    if not rows:
        return None
    most = rows[0][1]
    cells = [[name, cell(count(urls), share(urls, total), urls, most, KINDS[group_of(name)])] for name, urls in rows]
    return bars(["outcome", "URLs"], cells)


def _hosts(found: OutcomeFigures, taken: float) -> Markup:
    hosts = found.hosts.top(MOST_ROWS)
    most = max((urls for _, (urls, *_) in hosts), default=0)
    rows = []
    for name, (urls, *by_group) in hosts:
        of = zip(GROUPS, by_group, strict=True)
        parts = [(number, KINDS[group], f"{NAMES[group]}: {count(number / taken)}") for group, number in of]
        words = tag(
            "span",
            tag("b", count(urls / taken)),
            f" URLs, {share(sum(by_group[: len(WITH_TEXT)]), urls)} with text",
            class_="number",
        )
        rows.append([name, join([words, drawing.stacked(parts, most)])])
    return bars(["host", "URLs"], rows)


def preferences(found: Gathered) -> Markup | None:
    """Pages whose owners refuse training, by the signal that says so; they have tokens where they were kept."""
    figures: dict[str, list[float]] = {}  # hosts, pages, tokens
    for _, of, taken in found.outcomes:
        for name, (urls,) in of.refusals.names.items():
            row = figures.setdefault(name.partition("\t")[0], [0.0, 0.0, 0.0])
            row[:2] = row[0] + 1, row[1] + urls / taken
    for corpus in found.corpora:
        for signal, (_, bytes_, *counted) in corpus.figures.refusals.names.items():
            tokens = corpus.figures.tokens_in(bytes_, *counted) * corpus.scale
            figures.setdefault(signal, [0.0, 0.0, 0.0])[2] += tokens
    rows = sorted(figures.items(), key=lambda item: (-item[1][1], item[0]))
    whole = [sum(column) for column in zip(*figures.values(), strict=True)]
    return _bars("signal", (("hosts", count), ("pages refused", count), TOKENS), rows, whole) if rows else None


def scores(step: Step) -> Markup | None:
    """The scores that a classifier gave the documents of a step, and where they are cut."""
    facts, settings = step.record.get("facts", {}), step.record.get("settings", {})
    if step.stage != "filter" or "scores" not in facts:
        return None
    dropped, kept = facts["scores"]
    cut = settings.get("threshold", facts.get("lowest_score_kept"))
    charts_of = [("Documents by their score", [sum(pair) for pair in zip(dropped, kept, strict=True)])]
    charts_of += [("Documents that are kept", kept)] if cut is None else []
    mark = None if cut is None else (cut, f"kept from {cut:.2f} on")
    edges = [at / len(kept) for at in range(len(kept) + 1)]
    parts: list[Markup] = []
    for title, counts in charts_of:
        columns = [(low, high, float(times)) for (low, high), times in zip(pairwise(edges), counts, strict=True)]
        parts += [tag("h3", title), drawing.histogram(columns, title=title, log=False, show=_score, mark=mark)]
    rows = [
        (f"{low:.2f} to {high:.2f}", count(stays), count(goes))
        for (low, high), stays, goes in zip(pairwise(edges), kept, dropped, strict=True)
        if stays or goes
    ]
    return join([*parts, drawing.table(("score", "kept", "dropped"), rows)])


def _score(value: float) -> str:
    return f"{value:.2f}"


MOST_GROUPS, SHOWN_GROUPS = 10, 3
PASSAGE = 160
"""Characters of a passage that two documents have."""


def duplicates(step: Step, found: DuplicateFigures) -> Markup | None:
    """How similar duplicates are, and the largest groups; of passages the most repeated ones."""
    if not found.rows:
        return None
    return filled(
        "duplicates",
        found=found,
        groups=_groups(found),
        similarities=_similarities(found) if found.similarities else None,
        number=len(found.groups.names),
        dropped=step.record.get("dropped", {}).get("duplicate", 0),
        lacking=", ".join(step.record.get("facts", {}).get("lacking_in_what_stays", [])),
    )


def _similarities(found: DuplicateFigures) -> Markup:
    """A column for each per cent; exact copies have one of their own, at the end."""
    first = min(*found.similarities, 99)
    columns = [(per / 100, (per + 1) / 100, float(found.similarities.get(per, 0))) for per in range(first, 101)]
    chart = drawing.histogram(
        columns,
        title="Duplicates by their similarity to the document that stays",
        kind="dropped",
        log=False,
        show=lambda value: f"{min(value, 1.0):.2f}",
    )
    rows = [(f"{low:.2f}", count(number)) for low, _, number in columns if number]
    return join([chart, drawing.table(("similarity", "documents"), rows)])


def _groups(found: DuplicateFigures) -> Markup:
    """The largest groups: some to be seen, the others to be opened; without bars that would all be the same."""
    top = found.groups.top(MOST_GROUPS)
    is_varied = len({number for _, (number,) in top}) > 1
    rows = []
    for name, (number,) in top:
        match = textwrap.shorten(found.matches.get(name) or "", PASSAGE, placeholder=" …")
        quoted = tag("div", f"“{match}”", class_="where") if match else None
        shown = cell(count(number), "", number, top[0][1][0], "dropped") if is_varied else count(number)
        rows.append([join([name, quoted]), shown])
    head = ["what stays, and a passage that both have", "duplicates"]
    more = tag("summary", f"{len(rows) - SHOWN_GROUPS} more")
    rest = tag("details", more, bars(head, rows[SHOWN_GROUPS:], "bars wordy")) if len(rows) > SHOWN_GROUPS else None
    return join([bars(head, rows[:SHOWN_GROUPS], "bars wordy"), rest])


def examples(corpora: Sequence[ReportedCorpus], dropped: Sequence[Examples]) -> Markup:
    """Some of the documents that are there, and of what was dropped, by stage and reason."""
    kept = [entry for corpus in corpora for entry in corpus.figures.examples.ordered()]
    by_step = [(step, list(of)) for step, of in groupby(dropped, key=lambda entry: entry.step)]
    return filled("examples", kept=kept, dropped=by_step)

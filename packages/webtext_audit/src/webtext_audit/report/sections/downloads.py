"""How the URLs of a download ended, in all and by host."""

from __future__ import annotations

from command_kit import charts
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count, share
from webtext_audit.report.figures import GROUPS, OutcomeFigures, group_of
from webtext_audit.report.sections.layout import MOST_ROWS, bars, cell

NAMES = {
    "ok": "page with text",
    "client": "HTTP 3xx, 4xx",
    "server": "HTTP 5xx",
    "robots": "robots.txt",
    "network": "network",
    "content": "no usable text",
}
KINDS = dict(zip(GROUPS, ("c1", "c2", "c3", "c4", "c6", "c5"), strict=True))


def outcomes(found: OutcomeFigures, taken: float) -> Markup:
    """How downloads ended; `taken` is the share of the URLs that were counted."""
    total, good = found.outcomes.totals()[0] / taken, found.outcomes.names.get("ok", [0.0])[0] / taken
    more = len(found.hosts.names) - MOST_ROWS
    return join(
        [
            tag("p", f"{count(good)} of {count(total)} URLs ({share(good, total)}) gave a page with text."),
            charts.legend((KINDS[group], NAMES[group]) for group in GROUPS),
            _reasons(found, taken, total),
            tag("h3", "By host"),
            _hosts(found, taken),
            tag("p", f"And {count(more)} other hosts.", class_="note") if more > 0 else None,
            tag("p", f"Estimated from {share(taken, 1)} of the URLs, chosen by a hash.", class_="note")
            if taken < 1
            else None,
        ]
    )


def _reasons(found: OutcomeFigures, taken: float, total: float) -> Markup | None:
    """Every other outcome than a page; those would hide what the others are."""
    rows = [(name, values[0] / taken) for name, values in found.outcomes.top(MOST_ROWS + 1) if name != "ok"]
    if not rows:
        return None
    most = rows[0][1]
    cells = [[name, cell(count(urls), share(urls, total), urls, most, KINDS[group_of(name)])] for name, urls in rows]
    return join([tag("h3", "Why there is no text"), bars(["outcome", "URLs"], cells)])


def _hosts(found: OutcomeFigures, taken: float) -> Markup:
    hosts = found.hosts.top(MOST_ROWS)
    most = max((urls for _, (urls, *_) in hosts), default=0)
    rows = []
    for name, (urls, *by_group) in hosts:
        of = zip(GROUPS, by_group, strict=True)
        parts = [(number, KINDS[group], f"{NAMES[group]}: {count(number / taken)}") for group, number in of]
        words = tag(
            "span", tag("b", count(urls / taken)), f" URLs, {share(by_group[0], urls)} with text", class_="number"
        )
        rows.append([name, join([words, charts.stacked(parts, most)])])
    return bars(["host", "URLs"], rows)

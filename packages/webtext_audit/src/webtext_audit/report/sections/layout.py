"""What the sections of a report share: their frame, and tables whose numbers have bars beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from command_kit import charts
from command_kit.charts.markup import Markup, join, tag

MOST_ROWS = 15
"""Of a table; the rest is put together."""


def section(title: str, *children: object, note: object = None) -> Markup:
    """A section of the page; its id is made of its title."""
    head = [tag("h2", title), tag("p", note, class_="note") if note else None]
    return tag("section", *head, *children, id=anchor(title))


def anchor(title: str) -> str:
    """The id of the section of that title."""
    return title.lower().replace(" ", "-")


def cell(value: str, part: str, number: float, most: float, kind: str = "kept") -> Markup:
    """A number in a table, with its share of the whole, over a bar."""
    return join([tag("span", tag("b", value), " ", tag("i", part), class_="number"), charts.bar(number, most, kind)])


def bars(head: Sequence[str], rows: Iterable[Sequence[object]], kind: str = "bars") -> Markup:
    """A table whose numbers have bars beside them."""
    body = (tag("tr", tag("td", first, class_="name"), *(tag("td", cell) for cell in rest)) for first, *rest in rows)
    top = tag("tr", *(tag("th", name, scope="col", class_="name" if not at else None) for at, name in enumerate(head)))
    return tag("table", tag("thead", top), tag("tbody", *body), class_=kind)

"""The HTML of the report: templates of Jinja2 in `templates/`, in which whatever is no markup is escaped."""

from __future__ import annotations

import functools
from typing import Any

import jinja2
import markupsafe

from command_kit import hide_credentials
from command_kit.charts.markup import Markup, escape
from command_kit.charts.numbers import count, figure, share


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("webtext_audit", "report/templates"),
        autoescape=True,
        finalize=_escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"count": count, "share": share, "anchor": anchor, "setting": _setting}
    return environment


def _escaped(value: Any) -> Any:
    """Nothing for None; what is markup already, as of a macro, unchanged."""
    return "" if value is None else value if isinstance(value, markupsafe.Markup) else escape(value)


def filled(name: str, **values: Any) -> Markup:
    """A template with its values; those that are text, such as that of a document, stay text."""
    return Markup(_environment().get_template(f"{name}.html.j2").render(values))


def anchor(title: str) -> str:
    """The id of the section of that title."""
    return title.lower().replace(" ", "-")


def _setting(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_setting, value)) or "(none)"
    return hide_credentials(figure(value))

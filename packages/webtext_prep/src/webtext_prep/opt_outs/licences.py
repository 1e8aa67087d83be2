"""Licences by RSL 1.0 (Really Simple Licensing: rslstandard.org/rsl, recommendation of 10 December 2025, with its
errata up to 7 August 2026): whether a document licenses training on a page, free of charge and of conditions.

What says so is a `<content>`, whose `url` is a path as in robots.txt (section 3.3), with `<license>` elements. Of
several that are for a page the one with the longest path holds, the order counts for nothing, and of two as long the
stricter one (3.1.1). Training is licensed

- if no licence prohibits it: `all`, `ai-all` or `ai-train` under `<prohibits type="usage">`, which wins over
  `<permits>` (3.1.1, 3.6);
- if a licence permits it: one with `<permits type="usage">` permits what stands there and nothing else (3.5);
- and asks for nothing that a crawler cannot give: a payment other than `free` (3.7; none is free), which credit to be
  given is, too; reports (3.12); to be of certain users or in certain countries; or a licence of a `server`, which is to
  be fetched first even where it is free (3.3).

An element of RSL's namespace that is not known makes a document one that nobody may rely on (1.2): it may refuse, and
allows nothing. Those of other namespaces say nothing. Drafts of 2025 had commas between words, and `train-ai`.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urljoin

from webtext_prep.opt_outs.hosts import origin_of
from webtext_prep.opt_outs.preferences import LICENCE, HostPreferences, Rule, pattern_of, shortened
from webtext_prep.text.tags import tags

NAMESPACE, MEDIA_TYPE = "https://rslstandard.org/rsl", "application/rsl+xml"
MAX_BYTES = 1 << 20
"""Of a document."""
UNREADABLE = HostPreferences(unreadable=[LICENCE])
_TRAINING = frozenset({"all", "ai-all", "ai-train", "train-ai"})
_KNOWN = frozenset(["rsl", "content", "license", "permits", "prohibits", "payment", "standard", "custom", "amount"])
_KNOWN |= {"accepts", "reporting", "legal", "schema", "alternate", "copyright", "terms"}
_LINK = re.compile(r"<([^>]*)>([^<]*)")
_PARAMETER = re.compile(r';\s*(rel|type)\s*=\s*(?:"([^"]*)"|([^\s;,"]*))', re.IGNORECASE)


def read_licence(body: bytes, source: str, page: str) -> HostPreferences:
    """What a document says of the pages of a host.

    Args:
        body: its XML. Entities, and with them document types, are not read, and nothing that it names is fetched.
        source: its URL.
        page: the URL of any page of the host; of the page that it stands in or belongs to, for which an empty `url` is.
    """
    from lxml import etree  # type: ignore[import-untyped]

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        root = etree.fromstring(body, parser) if len(body) <= MAX_BYTES else None
    except (etree.XMLSyntaxError, ValueError):
        return UNREADABLE
    if root is None or root.getroottree().docinfo.doctype or root.tag != f"{{{NAMESPACE}}}rsl":
        return UNREADABLE
    is_known = {_name_of(element) for element in root.iter(f"{{{NAMESPACE}}}*")} <= _KNOWN
    rules = []
    for content in root.findall(f"{{{NAMESPACE}}}content"):
        url, refusal = content.get("url", "").strip() or "/", _refusal(content)
        if "://" in url:
            origin, url = origin_of(url), "/" + "".join(url.split("/", 3)[3:])
        else:
            origin = origin_of(page)
        if origin == origin_of(page) and (is_known or refusal):
            rules.append(Rule(pattern_of(url), not refusal, refusal or '<permits type="usage">ai-train</permits>'))
    return HostPreferences.of(LICENCE, source, rules, [] if rules else [LICENCE])


def _name_of(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def _refusal(content: Any) -> str:
    """The words by which training is not licensed; nothing where it is."""
    if content.get("server"):
        return shortened(f'<content server="{content.get("server")}">')
    conditions = []
    for licence in content.findall(f"{{{NAMESPACE}}}license"):
        conditions.append("")
        for element in licence.iterfind(f"{{{NAMESPACE}}}*"):
            name, kind = _name_of(element), element.get("type", "").strip().lower()
            words = shortened(f'<{name} type="{kind}">{element.text or ""}</{name}>')
            is_of_training = bool(_TRAINING & {*re.split(r"[\s,]+", (element.text or "").lower())})
            if name == "prohibits" and kind == "usage" and is_of_training:
                return words
            is_met = {
                "permits": kind == "usage" and is_of_training,
                "prohibits": kind == "usage",
                "payment": kind in ("", "free"),
                "reporting": False,
            }.get(name, True)
            conditions[-1] = conditions[-1] or words * (not is_met)
    return min(conditions, key=bool, default="<content> without <license>")


def linked(values: list[str], url: str) -> list[str]:
    """The documents that the `Link` headers of a page name (section 4.5)."""
    found = []
    for target, parameters in (link for value in values for link in _LINK.findall(value)):
        given = {name.lower(): (a or b).lower() for name, a, b in _PARAMETER.findall(parameters)}
        if "license" in given.get("rel", "").split() and given.get("type") == MEDIA_TYPE:
            found.append(urljoin(url, target.strip()))
    return found


def in_page(text: str, url: str) -> tuple[list[str], list[bytes]]:
    """The documents that a page names by `<link>`, and those that stand in it (section 4.6).

    Its text is as `text_with` gives it."""
    links, documents = [], []
    for tag in tags(text, "link", "script"):
        given = tag.attributes()
        if given.get("type", "").strip().lower() == MEDIA_TYPE:
            if tag.name == "script":
                documents.append(tag.text.strip().encode("latin-1"))
            elif "license" in given.get("rel", "").lower().split():
                links.append(urljoin(url, given.get("href", "")))
    return links, documents

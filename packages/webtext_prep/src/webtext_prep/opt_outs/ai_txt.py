"""ai.txt of Spawning: robots.txt's grammar for types of files, in a file of its own at the root of a host.

Spawning's own description (2023) can't be had any more; the form is that of the files that its generator made, which
sites still serve:

    User-Agent: *
    Disallow: *.html
    Disallow: /

So only what is certain counts: rules for all, for training crawlers and for ours; `*.html` is for pages that end so, or
without a suffix; the longest rule holds, and of two as long the stricter one. Other formats of that name are not read.
"""

from __future__ import annotations

from webtext_prep.opt_outs.robots_txt import groups_in, text_of
from webtext_prep.opt_outs.training_crawlers import crawlers, rules_for
from webtext_prep.opt_outs.wishes import AI_TXT, Rules

PATH = "/ai.txt"


def read(body: bytes, agent: str, source: str) -> list[Rules]:
    """The rules of an ai.txt; none where a host answers with a page instead."""
    text = text_of(body)
    if text.lstrip()[:1] == "<":
        return []
    return rules_for(groups_in(text), {*crawlers(), "*", agent.lower()}, AI_TXT, source)

"""robots.txt (RFC 9309): a page that is forbidden to a crawler known to collect for training (`crawlers.toml`).

Only groups that name such a crawler count: what is forbidden to all crawlers is forbidden to ours, which is another
matter. Each crawler obeys the groups that name it alone, as the RFC says; a page that one of them may not have is
refused, whatever others may.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Collection, Sequence
from importlib import resources

from webtext_prep.opt_outs.robots_txt import Group, rules_in
from webtext_prep.opt_outs.wishes import AI_TXT, Rule, Rules, limited


@functools.cache
def crawlers() -> dict[str, str]:
    """Known crawlers that collect for training: the name in lower case, and as it is written."""
    text = resources.files(__package__).joinpath("crawlers.toml").read_text(encoding="utf-8")
    return {name.lower(): name for name in tomllib.loads(text)["crawlers"]}


def rules_for(groups: Sequence[Group], names: Collection[str], signal: str, source: str) -> list[Rules]:
    """What each of `names` may have by the groups that name it; those that have the same groups together.

    The limits are for the file: every page of the host is matched with all rules of all crawlers.
    """
    theirs: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for name in dict.fromkeys(group.agents):
            if name in names:
                theirs.setdefault(name, []).append(number)
    first = {tuple(numbers): name for name, numbers in reversed(theirs.items())}
    found, before = [], list[Rule]()
    for numbers, name in reversed(first.items()):
        lines = (line for number in numbers for line in groups[number].lines)
        rules = limited(rules_in(lines, is_file_type=signal == AI_TXT), before)
        before += rules
        if rules:
            found.append(Rules(signal, source, rules, f"User-agent: {crawlers().get(name, name)}"))
    return found

"""robots.txt: obeyed as sites mean it, and cheap whatever a server sends."""

import asyncio
import threading

import pytest
from protego import Protego

from webtext_prep.crawl.frontier import robots
from webtext_prep.crawl.frontier.robots import Robots, parse_rules, rules_of
from webtext_prep.crawl.http.client import Reply
from webtext_prep.opt_outs.robots_txt import MAX_BYTES, MAX_LINE
from webtext_prep.opt_outs.wishes import MAX_RULES

AGENT = "webtext"


def allows(text: str, url: str = "http://a.org/private/x") -> bool:
    return parse_rules(text.encode(), AGENT).refusal(url) is None


@pytest.fixture
def handed_over(monkeypatch) -> list[str]:
    """The texts given to Protego."""
    texts: list[str] = []
    parse = Protego.parse

    def note(text: str) -> Protego:
        texts.append(text)
        return parse(text)

    monkeypatch.setattr(robots.Protego, "parse", note)
    return texts


HOSTILE = {
    "agents and rules, line by line": "".join(f"User-agent: a{n}\nDisallow: /{n}\n" for n in range(20_000)),
    "many agents before many rules": "".join(f"User-agent: a{n}\n" for n in range(2000))
    + "".join(f"Disallow: /{n}\n" for n in range(2000)),
    "many agents, ours among them": "".join(f"User-agent: a{n}\n" for n in range(2000))
    + "User-agent: *\n"
    + "".join(f"Disallow: /{n}\n" for n in range(2000)),
    "every rule is ours": "User-agent: *\n" + "Disallow:/a\n" * 60_000,
    "one group over and over": "User-agent: *\nDisallow: /x\n" * 40_000,
    "every prefix of our name": "".join(f"User-agent: {AGENT[:n]}\nDisallow: /{n}\n" for n in range(1, 8)) * 2000,
    "one line": "User-agent: *\nDisallow: /" + "x" * MAX_BYTES,
    "one line of agents": "User-agent: " + "a " * (MAX_BYTES // 2),
    "nothing but newlines": "\n" * MAX_BYTES,
    "wildcards": "User-agent: *\n" + ("Disallow: /" + "*a" * 2000 + "\n") * 120,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_hands_a_bounded_number_of_rules_for_one_agent_to_the_parser(kind, handed_over):
    """One robots.txt of 66 kB with 2,000 agents and 2,000 rules held the event loop for 13 seconds, one of 500 kB for
    minutes and 20 GB: the parser's work is agents times rules."""
    parse_rules(HOSTILE[kind].encode(), AGENT)
    assert len(handed_over) <= 1
    for text in handed_over:
        lines = text.split("\n")
        assert lines[0] == "User-agent: *"
        assert len(lines) <= MAX_RULES + 1
        assert not any("agent" in line.lower() for line in lines[1:])
        assert max(map(len, lines)) <= MAX_LINE
        assert text.count("*") <= robots.MAX_WILDCARDS + 1


def test_a_large_file_is_parsed_beside_the_event_loop(monkeypatch):
    """Parsing ran on the event loop, so that all other requests stood still meanwhile."""
    threads = []
    parse = robots.parse_rules
    monkeypatch.setattr(
        robots, "parse_rules", lambda *arguments: threads.append(threading.get_ident()) or parse(*arguments)
    )

    body = b"User-agent: *\n" + b"Disallow: /private\n" * 4000
    rules = asyncio.run(rules_of(Reply("ok", "http://a.org/robots.txt", 200, body=body), "webtext/1"))
    assert rules.refusal("http://a.org/private/x") == "robots"
    assert threads and threads[0] != threading.get_ident()


def test_the_rules_of_many_hosts_are_remembered_up_to_a_number_of_rules_together(monkeypatch):
    """Only the number of hosts was bounded: thousands of them with large files would have filled the memory."""
    monkeypatch.setattr(robots, "KEPT_RULES", 1000)

    known, rules = Robots(), parse_rules(b"User-agent: *\n" + b"Disallow: /private\n" * 100, AGENT)
    origins = [f"http://host{n}.org" for n in range(50)]
    for origin in origins:
        known.learn(origin, rules)
    assert len(known._known) == 10 and known._rules == 1000
    assert known.get(origins[-1]) == known.get(origins[-10]) == rules
    assert known.get(origins[0]) is None
    known.learn(origins[0], rules)
    assert (known.get(origins[0]), known.get(origins[-9])) == (rules, None)
    assert len(known._known) == 10 and known._rules == 1000


def test_our_group_is_found_among_thousands_and_obeyed():
    before = "".join(f"User-agent: a{n}\nDisallow: /\n" for n in range(4000))
    assert not allows(before + "User-agent: webtext\nDisallow: /private\n")
    assert allows(before + "User-agent: webtext\nAllow: /private/x\nDisallow: /private\n")
    assert allows(before)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("Disallow: /", True),  # no group
        ("User-agent: *\nDisallow: /", False),
        ("user-AGENT : WebText\ndisallow : /private", False),
        ("User-agent: webtext/2.0\nDisallow: /", False),
        ("User-agent: other\nDisallow: /", True),
        ("User-agent: *\nDisallow: /\n\nUser-agent: webtext\nDisallow:", True),  # the closest group alone
        ("User-agent: *\nDisallow: /\n\nUser-agent: web\nAllow: /", True),
        ("User-agent: other\nUser-agent: webtext\nDisallow: /", False),
        ("User-agent: webtext\nSitemap: http://a.org/s\nUser-agent: other\nDisallow: /", False),
        ("User-agent: webtext\nDisallow: /x\nUser-agent: other\nDisallow: /", True),
        ("User-agent: webtext\nDisallow: /x\n\nUser-agent: webtext\nDisallow: /private", False),  # two groups are one
        ("\ufeffUser-agent: *\nDisallow: / # all of it", False),
        ("User-agent *\nDisallow /private", False),
        ("User-agent: *\nDissallow: /private", False),
        ("User-agent: *\nDisallow: /*/x$", False),
        ("User-agent: *\nDisallow: /*/y$", True),
        ("User-agent: *\r\nDisallow: /\r\nAllow: /private/", True),
    ],
)
def test_what_a_file_says_of_us(text, expected):
    assert allows(text) is expected
    assert Protego.parse(text.removeprefix("\ufeff")).can_fetch("http://a.org/private/x", AGENT) is expected or (
        "2.0" in text  # the one thing that we understand and the parser alone does not
    )


def test_a_crawl_delay_is_that_of_our_group():
    rules = parse_rules(b"User-agent: *\nCrawl-delay: 9\n\nUser-agent: webtext\nCrawl-delay: 2.5", AGENT)
    assert rules.crawl_delay == 2.5

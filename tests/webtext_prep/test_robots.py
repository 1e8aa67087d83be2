"""robots.txt: obeyed as sites mean it, and cheap whatever a server sends."""

import asyncio
import threading
import time

import pytest

from webtext_prep.crawl.frontier import robots
from webtext_prep.crawl.frontier.robots import Robots, parse_rules, rules_of
from webtext_prep.crawl.http.client import Reply
from webtext_prep.opt_outs.decisions import decide_by_host
from webtext_prep.opt_outs.preferences import MAX_RULES
from webtext_prep.opt_outs.robots_txt import MAX_BYTES

AGENT = "webtext"


def allows(text: str, url: str = "http://a.org/private/x") -> bool:
    return parse_rules(text.encode(), AGENT).refusal(url) is None


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
def test_a_hostile_file_costs_little(kind):
    """Protego's work was agents times rules: 13 seconds of the event loop for 66 kB, minutes and 20 GB for 500 kB."""
    start = time.process_time()
    found = parse_rules(HOSTILE[kind].encode(), AGENT)
    assert found.count <= MAX_RULES
    for _ in range(5):
        found.refusal("http://a.org/" + "a" * 2000)
    assert time.process_time() - start < 60


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
        ("User-agent: *\nDisallow: /\n\nUser-agent: web\nAllow: /", False),  # RFC 9309, 2.2.1: another name
        ("User-agent: web\nDisallow: /", True),
        ("User-agent: webtext (of ours)\nDisallow: /", False),
        ("User-agent: webtext*\nDisallow: /", False),
        ("User-agent: * of all\nDisallow: /", False),
        ("User-agent: webtext-other\nDisallow: /", True),
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


BETWEEN = (
    "License: https://e.org/l.xml",
    "Crawl-delay: 9",
    "Content-Signal: search=yes",
    "Sitemap: https://e.org/s.xml",
    "Host: e.org",
    "Clean-param: a /b",
    "words",
    "",
    "# words",
)


@pytest.mark.parametrize("line", BETWEEN)
@pytest.mark.parametrize("ours", ["webtext", "*"])
def test_a_line_of_another_kind_between_names_does_not_end_a_group(ours, line):
    """RFC 9309, section 2.2.4, as Google's parser and robotspy 0.13 have it; Protego 0.7 ends the group."""
    text = f"User-agent: {ours}\n{line}\nUser-agent: other\n{line}\nDisallow: /private\n"
    assert not allows(text)
    assert allows(f"{text}User-agent: third\nDisallow: /", "http://a.org/public")


SPELLINGS = ("disallow", "Dissallow", "DISSALOW", "disalow", "diasllow", "disallaw", "disallowed", "disallow ")


@pytest.mark.parametrize("key", SPELLINGS)
def test_what_forbids_us_a_page_forbids_it_for_training_in_the_same_spelling(key):
    """Those that Google's parser and Protego 0.7 take; `disallowed`, as Google's asks for the beginning alone."""
    text = "User-agent: {}\n" + key + ": /a b/\nAllow: /a b/c"
    assert not allows(text.format("webtext"), "http://a.org/a%20b/d")
    assert allows(text.format("webtext"), "http://a.org/a%20b/c")
    found = parse_rules(text.format("GPTBot").encode(), AGENT, "http://a.org/robots.txt")
    refused = [decide_by_host(f"http://a.org/a%20b/{name}", found.preferences) is not None for name in "dc"]
    assert refused == [True, False]


ESCAPES = (
    ("/a b", "/a%20b", True),
    ("/a%20b", "/a b", True),
    ("/ü", "/%C3%BC", True),
    ("/%7Eme", "/~me", True),
    ("/a%2Fb", "/a/b", False),
    ("/a%2fb", "/a%2Fb", True),
    ("/a%24", "/a$", True),
    ("/a%24", "/a%24b", True),
    ("/a$", "/a$", False),
    ("/a$b", "/a$b", True),
    ("/a%2A", "/a*", True),
    ("/a%2a", "/a*", True),
    ("/a%2A", "/ab", False),
    ("/a*b", "/a%2Ab", True),
    ("/<a>", "/%3Ca%3E", True),
    ("/a?b=[1]", "/a?b=[1]", True),
    ("/a\u2028b", "/a%E2%80%A8b", True),
)


@pytest.mark.parametrize(("pattern", "path", "expected"), ESCAPES)
def test_paths_are_compared_in_one_form(pattern, path, expected):
    """RFC 9309, sections 2.2.2 and 2.2.3."""
    assert allows(f"User-agent: *\nDisallow: {pattern}", f"http://a.org{path}") is not expected


def test_only_the_ends_of_lines_that_the_rfc_names_end_a_line():
    """Python's `splitlines` breaks at U+2028, U+0085 and others, too."""
    for sign in "\u2028\u2029\x85\x0b\x0c\x1c":
        assert allows(f"User-agent: *\nDisallow: /a{sign}Disallow: /private")
    for end in ("\n", "\r", "\r\n"):
        assert not allows(f"User-agent: *{end}Disallow: /private")


def test_all_rules_that_500_kibibytes_hold_count():
    """RFC 9309, section 2.5; the ten thousandth was the last."""
    lines = [f"Allow: /{number}" for number in range(30_000)]
    text = "\n".join(["User-agent: *", "User-agent: GPTBot", *lines, "Disallow: /private"])
    assert len(text) < MAX_BYTES
    found = parse_rules(text.encode(), AGENT, "http://a.org/robots.txt")
    assert found.refusal("http://a.org/private") == "robots" and found.refusal("http://a.org/29999") is None
    assert decide_by_host("http://a.org/private", found.preferences) is not None
    wild = "\n".join(["User-agent: *", *["Disallow: /x*"] * 30_000, "Disallow: /*vate"])
    assert not allows(wild)


def test_a_crawl_delay_is_that_of_our_group():
    rules = parse_rules(b"User-agent: *\nCrawl-delay: 9\n\nUser-agent: webtext\nCrawl-delay: 2.5", AGENT)
    assert rules.crawl_delay == 2.5

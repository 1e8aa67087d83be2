"""What owners say of training on their pages: each signal by its text, which holds of several, and hostile files."""

import contextlib
import time
import tomllib
from pathlib import Path

import pytest

from webtext_prep.opt_outs import preferences, signals
from webtext_prep.opt_outs.decisions import decide
from webtext_prep.opt_outs.licences import MAX_BYTES as MAX_LICENCE
from webtext_prep.opt_outs.licences import read_licence
from webtext_prep.opt_outs.preferences import MAX_RULES, MAX_WILDCARDS, MAX_WORDS, SIGNALS, HostPreferences, matches
from webtext_prep.opt_outs.robots_txt import MAX_BYTES
from webtext_prep.opt_outs.signals import HOST_FILES, crawlers, read_host_file

PATIENCE = 60
"""Seconds of processor time after which a reader hangs: a thousand times what each of these takes."""
HOST = "https://example.org"
LICENCE_URL = f"{HOST}/license.xml"
ENTRIES = tomllib.loads(Path(__file__).with_name("preferences").joinpath("cases.toml").read_text(encoding="utf-8"))[
    "entry"
]
CASES = [(entry, path, expected) for entry in ENTRIES for path, expected in entry["expect"].items()]


def decided(entry, path):
    """The decision about a page of the host that an entry of the table describes."""
    agent, host = entry.get("agent", "webtext"), HostPreferences()
    for key, file in zip(("robots", "tdmrep", "ai"), HOST_FILES, strict=True):
        if key in entry:
            host += read_host_file(file, entry[key].encode(), agent, f"{HOST}{file}")
    if "licence" in entry:
        host += read_licence(entry["licence"].encode(), LICENCE_URL, f"{HOST}/")
    headers = [(name.encode(), value.encode("latin-1")) for name, value in entry.get("headers", ())]
    page = entry.get("page", "").encode(entry.get("encoding", "utf-8"))
    return decide(HOST + path, host, headers, page, agent)


@pytest.mark.parametrize(
    ("entry", "path", "expected"), CASES, ids=[f"{entry['source'][:60]} {path}" for entry, path, _ in CASES]
)
def test_what_the_texts_say_is_decided(entry, path, expected):
    found = decided(entry, path)
    if found.refusal is not None:
        verdict = found.refusal.signal
    elif found.preference is not None:
        verdict = "allowed"
    else:
        verdict = "unreadable" if found.unreadable else "silent"
    assert verdict == expected
    if "words" in entry:
        assert found.preference.words == entry["words"]


def test_the_table_has_all_signals_and_more_than_120_cases():
    assert len(CASES) >= 120
    assert {found for *_, found in CASES} | {*preferences.AT_THE_EDGE} == {*SIGNALS, "allowed", "silent", "unreadable"}


def test_a_refusal_says_which_words_stand_where():
    robots = "User-agent: CCBot\nUser-agent: GPTBot\nDisallow: /private # ours\n"
    host = read_host_file("/robots.txt", robots.encode(), "webtext", f"{HOST}/robots.txt")
    found = decide(f"{HOST}/private/a", host, [], b"")
    assert found.metadata == {
        "opt_out": "robots.txt",
        "opt_out_words": "User-agent: CCBot; Disallow: /private",
        "opt_out_source": f"{HOST}/robots.txt",
    }
    on_page = decide(f"{HOST}/a", HostPreferences(), [(b"X-Robots-Tag", b"noai")], b"").refusal
    assert (on_page.words, on_page.source) == ("X-Robots-Tag: noai", f"{HOST}/a")


def test_a_preference_that_an_earlier_run_has_noted_holds():
    known = {"opt_out": "ai.txt", "opt_out_words": "User-agent: *; Disallow: /", "opt_out_source": f"{HOST}/ai.txt"}
    assert decide(f"{HOST}/a", HostPreferences(), [], b"", known=known).metadata == known


def test_every_crawler_has_a_source_and_a_name_that_can_stand_in_a_file():
    text = Path(signals.__file__).with_name("crawlers.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)["crawlers"]
    assert all(source.startswith("https://") for source in found.values())
    assert len(crawlers()) == len(found)
    for name in found:
        host = read_host_file("/robots.txt", f"User-agent: {name}\nDisallow: /".encode(), "webtext", HOST)
        assert [preference.words for preference in host.for_page(HOST)] == [f"User-agent: {name}; Disallow: /"]


AGENTS = "".join(f"User-agent: {name}\n" for name in crawlers().values())
ALL = b"User-agent: *\n"
HOSTILE = {
    "a million lines": ("/robots.txt", b"\n" * 1_000_000),
    "lines of one letter": ("/robots.txt", b"a\n" * MAX_BYTES),
    "one line": ("/robots.txt", b"User-agent: GPTBot\nDisallow: /" + b"x" * MAX_BYTES),
    "spaces": ("/robots.txt", b"User-agent" + b" " * 4000 + b"\n" + b"Content-Usage" + b" \t" * 2000 + b"x\n"),
    "all crawlers again and again": ("/robots.txt", (AGENTS + "Disallow: /a\n").encode() * 1000),
    "all crawlers, and all rules": ("/robots.txt", AGENTS.encode() + b"Disallow: /a\n" * 40_000),
    "each crawler with rules of its own": (
        "/robots.txt",
        b"".join(b"User-agent: %b\n" % name.encode() + b"Allow: /b\n" * 1500 for name in crawlers()),
    ),
    "wildcards": ("/robots.txt", b"User-agent: GPTBot\n" + (b"Disallow: /" + b"*a" * 2000 + b"b\n") * 120),
    "wildcards in usage": ("/robots.txt", ALL + (b"Content-Usage: /" + b"*a" * 1900 + b" train-ai=n\n") * 120),
    "signals": ("/robots.txt", b"User-agent: *\n" + (b"Content-Signal: " + b"ai-train=x," * 300 + b"\n") * 150),
    "dictionaries": ("/robots.txt", b"User-agent: *\n" + (b"Content-Usage: " + b"a;b;c=1," * 500 + b"\n") * 120),
    "lists in lists": ("/robots.txt", b"User-agent: *\n" + (b"Content-Usage: a=" + b"(" * 4000 + b"\n") * 120),
    "strings that do not end": ("/robots.txt", ALL + (b'Content-Usage: a="' + b'\\"' * 2000 + b"\n") * 120),
    "no text": ("/robots.txt", bytes(range(256)) * 2000),
    "UTF-16": ("/robots.txt", "User-agent: GPTBot\nDisallow: /\n".encode("utf-16") * 5000),
    "deep JSON": ("/.well-known/tdmrep.json", b"[" * MAX_BYTES),
    "wide JSON": ("/.well-known/tdmrep.json", b"[" + b"0," * 200_000 + b"0]"),
    "many rules": (
        "/.well-known/tdmrep.json",
        b"[" + b'{"location":"/*a*a","tdm-reservation":1},' * 12_000 + b"0]",
    ),
    "a large number": ("/.well-known/tdmrep.json", b'[{"location":"/","tdm-reservation":1' + b"0" * 400_000 + b"}]"),
    "half a character": ("/.well-known/tdmrep.json", b'[{"location":"/\\ud800","tdm-reservation":1}]'),
    "too long": ("/.well-known/tdmrep.json", b"[" + b" " * MAX_BYTES + b"]"),
    "crawlers in many groups": (
        "/robots.txt",
        "".join("".join(f"User-agent: {name}\n" for name in [*crawlers()][first:]) + "Disallow: /*a\n" * 400
                for first in range(len(crawlers()))).encode(),
    ),
    "types of files": ("/ai.txt", b"User-agent: *\n" + b"Disallow: *.html\n" * 30_000),
}  # fmt: skip
NAMESPACE = 'xmlns="https://rslstandard.org/rsl"'
HOSTILE_LICENCES = {
    "too large": f"<rsl {NAMESPACE}>{' ' * MAX_LICENCE}</rsl>",
    "deep": f"<rsl {NAMESPACE}>" + "<content>" * 50_000,
    "many contents": f"<rsl {NAMESPACE}>" + '<content url="/*a"/>' * 40_000 + "</rsl>",
    "many licences": f'<rsl {NAMESPACE}><content url="/">' + "<license/>" * 80_000 + "</content></rsl>",
    "a document type": f'<!DOCTYPE rsl [<!ENTITY a "x">]><rsl {NAMESPACE}><content url="/">&a;</content></rsl>',
}
LONG_URL = f"{HOST}/{'a' * 2000}?{'a=' * 500}"


@pytest.mark.parametrize("kind", HOSTILE_LICENCES)
def test_a_hostile_licence_costs_little_and_allows_nothing(kind):
    start = time.process_time()
    host = read_licence(HOSTILE_LICENCES[kind].encode(), LICENCE_URL, HOST)
    assert (host.unreadable == ["rsl"]) == (kind not in ("many contents", "many licences"))
    assert not any(preference.is_allowed for preference in host.for_page(LONG_URL)) or kind == "many licences"
    assert time.process_time() - start < PATIENCE


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_of_a_host_costs_little(kind):
    path, body = HOSTILE[kind]
    start = time.process_time()
    host = read_host_file(path, body[:MAX_BYTES], "webtext", HOST + path)
    assert sum(len(rules.rules) for rules in host.rules) <= 2 * MAX_RULES  # of crawlers, and of usage
    stars = sum(rule.pattern.count("*") for rules in host.rules for rule in rules.rules)
    assert stars <= 2 * MAX_WILDCARDS
    for preference in host.for_page(LONG_URL):
        assert len(preference.words) <= 2 * MAX_WORDS
    assert time.process_time() - start < PATIENCE


TAG = b'<meta name="robots" content="noai">'


def refuses(page):
    return decide(f"{HOST}/a", HostPreferences(), (), page).refusal is not None


@pytest.mark.parametrize(
    "tag",
    [
        b'<meta name="robots" content="no&#97;i">',
        b'<meta name="robots" content="&#x06E;o&#X41;i">',
        b'<meta name="tdm&#45;reservation" content="1">',
        b'<meta name="content-&#0115;ignal" content="ai-train=no">',
    ],
)
def test_a_tag_that_is_written_with_references_says_the_same(tag):
    """The page was passed over as one that has no such word."""
    assert refuses(b"<head>%s</head><body>" % tag)
    assert not refuses(b"<head></head><body>%s" % (b"words " * 20_000 + tag))


@pytest.mark.parametrize(
    ("page", "is_found"),
    [
        (b"<head><style>" + b"x" * 300_000 + b"</style>%s</head><body>", True),
        (b"<html>" + b"<link rel=x href=y>" * 30_000 + b"%s<body>", True),
        (b"<title>t</title>" + b"<!-- </head> <body> -->" * 9000 + b"%s", True),
        (b"<head></head><body>" + b"words " * 20_000 + b"%s", False),
        (b"<head></head><body>%s", True),  # as parsers take it
        (b"<head><script>'</head><body>'" + b"x" * 90_000 + b"</script>%s", True),
    ],
)
def test_tags_are_read_in_the_whole_head_wherever_it_ends(page, is_found):
    """26 of 922 real pages have their robots tag behind 64 KiB."""
    assert refuses(page % TAG) == is_found
    assert refuses(b"\xff\xfe" + (page % TAG).decode().encode("utf-16-le")) == is_found


PAGES = {
    "comments that do not end": b"noai" + b"<!--" * 100_000,
    "scripts that do not end": b"noai" + b"<script " * 60_000,
    "tags that do not end": b"noai" + b"<meta " * 60_000,
    "quotes that do not end": b"noai" + b"<meta a=\"b'" * 40_000,
    "attributes": b"<meta name=robots content=noai " + b"a=b " * 100_000 + b">",
    "spaces": b"<meta name=robots " + b" " * 300_000 + b"content=noai>",
    "equals signs": b"noai<meta " + b"=" * 300_000,
    "a million tags": b'<meta name="x" content="noai">' * 40_000,
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_hostile_page_costs_little(kind):
    start = time.process_time()
    refuses(PAGES[kind])
    assert time.process_time() - start < PATIENCE


@pytest.mark.parametrize(
    "value", ['a="' + "\\\\" * 50_000, "a=" + "(1 " * 30_000, "a;b" * 30_000, "a," * 50_000, "*" * 99_999]
)
def test_a_hostile_header_costs_little(value):
    start = time.process_time()
    with contextlib.suppress(ValueError):
        signals.usage_allows(value)
    assert time.process_time() - start < PATIENCE


def test_a_pattern_matches_as_if_all_ways_were_tried():
    """Each part is looked for once, from the left: that is as good as all ways."""
    assert matches("/*a*b*c$", "/xxaxxbxxbxxcxxc")
    assert not matches("/*a*b*c$", "/xxaxxcxxb")
    assert not matches("/ab*ba$", "/aba")  # the parts may not overlap
    assert matches("*", "/") and matches("", "/x") and matches("/$", "/") and not matches("/$", "/x")

"""Web archives for a comparison: the pages of the documentation site, and as many more made of their paragraphs.

    ./uvw run benchmarks/warc_to_tokens/archive.py --pages 20000 --output warcs

A page that is made has 9 to 39 paragraphs from three places of the site. Every tenth is an earlier page with a
paragraph changed, every fiftieth an earlier one at another address, every fiftieth is German or French. All stand in a
frame as real sites have: some 12 kB of style sheets, script, menus, links to related pages and small print. The same
packages give the same bytes.
"""

from __future__ import annotations

import argparse
import functools
import html
import random
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

from command_kit import atomic_file
from webtext_prep.crawl.archives.warc_writing import info_record, response_record
from webtext_prep.crawl.http.client import Reply
from webtext_run import documentation_site as site

DATE = "2026-01-01T00:00:00Z"
HEADERS = ((b"Content-Type", b"text/html; charset=utf-8"),)
FILES = 8
"""Archives, so that two workers end at about the same time: datatrove gives each file to one task."""
NEAR, SAME, FOREIGN = 10, 50, 50
"""Of so many pages one is a near-duplicate, a copy, in another language."""
_PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)


@functools.cache
def articles() -> list[tuple[str, list[str]]]:
    """(title, paragraphs) of each page of the site that has some, as HTML without tags around it."""
    found = []
    warnings.simplefilter("ignore", SyntaxWarning)  # of the sources that are parsed
    for name in site.sources():
        found.append((f"The module {name}", _PARAGRAPH.findall(site.module_page(name) or "")))
    for name in sorted(topics):
        found.append((f"Python topic: {name}", _PARAGRAPH.findall(site.topic_page(name) or "")))
    return [(title, paragraphs) for title, paragraphs in found if paragraphs]


def pages(count: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """(URL, HTML) of `count` pages: every fourth is one of the site, as long as there are some."""
    source, known = random.Random(seed), articles()
    everything = [paragraph for _, paragraphs in known for paragraph in paragraphs]
    made: list[tuple[str, list[str]]] = []
    for number in range(count):
        language = "en"
        if number % 4 == 0 and number // 4 < len(known):
            title, paragraphs = known[number // 4]
        elif number % FOREIGN == 19:
            language = source.choice(sorted(site.OTHER_LANGUAGES))
            title, *texts = site.OTHER_LANGUAGES[language]
            paragraphs = [html.escape(text) for text in source.choices(texts, k=source.randint(2, 6))]
        elif number % SAME == 9:
            title, paragraphs = source.choice(made)
        elif number % NEAR == 1:
            title, earlier = source.choice(made)
            paragraphs = list(earlier)
            paragraphs[source.randrange(len(paragraphs))] = source.choice(everything)
        else:
            title, paragraphs = source.choice(known)[0], []
            for _ in range(3):
                begin, length = source.randrange(len(everything)), source.randint(3, 13)
                paragraphs += everything[begin : begin + length]
        made.append((title, paragraphs))
        body = "\n".join([f"<h1>{html.escape(title)}</h1>", *(f"<p>{text}</p>" for text in paragraphs)])
        yield f"https://site-{number % 397}.example/{number}.html", frame(number, title, body, language).encode()


def frame(number: int, title: str, body: str, language: str) -> str:
    """A whole page around a body."""
    names = [name for name, _ in articles()]

    def links(begin: int, step: int, amount: int) -> str:
        chosen = [names[(begin + step * at) % len(names)] for at in range(amount)]
        return "\n".join(
            f'<li class="item item-{at}"><a href="/{begin + at}.html" title="{name}"><span>{name}</span></a></li>'
            for at, name in enumerate(map(html.escape, chosen))
        )

    style = "\n".join(f".item-{at} {{ margin: {at}px; color: #{at:06x}; display: inline-block; }}" for at in range(40))
    return f"""<!DOCTYPE html>
<html lang="{language}"><head><meta charset="utf-8"><title>{html.escape(title)} - Documentation</title>
<meta name="viewport" content="width=device-width"><style>{style}</style>
<script>window.page = {{"number": {number}, "consent": null}};</script></head>
<body class="page"><header><div class="logo"><a href="/">Documentation</a></div>
<nav class="menu"><ul>{links(0, 1, 25)}</ul></nav>
<form action="/search"><input name="q"><button>Search</button></form></header>
<div class="columns"><aside class="sidebar"><h3>Contents</h3><ul>{links(number, 7, 30)}</ul></aside>
<main id="content"><article>
{body}
</article></main>
<aside class="related"><h3>Related pages</h3><ul>{links(number * 3, 11, 12)}</ul></aside></div>
<footer><ul>{links(100, 5, 8)}</ul><p>We use cookies to make this site better. Read our privacy policy.</p>
<p>Copyright 2026. All rights reserved.</p></footer></body></html>
"""


def write_archives(folder: Path, count: int, files: int = FILES) -> int:
    """Write `count` pages as `files` archives, and return how many bytes of HTML they are."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [[info_record(DATE, "documentation")] for _ in range(files)]
    size = 0
    for number, (url, page) in enumerate(pages(count)):
        reply = Reply("ok", url, 200, body=page, reason="OK", headers=HEADERS)
        parts[number % files].append(response_record(reply, url, DATE))
        size += len(page)
    for number, part in enumerate(parts):
        with atomic_file(folder / f"pages-{number:02}.warc.gz") as file:
            file.write(b"".join(part))
    return size


def main() -> None:
    """Write archives."""
    parser = argparse.ArgumentParser(description="Write web archives of pages of documentation.")
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    print(f"{write_archives(arguments.output, arguments.pages):,} bytes of HTML", file=sys.stderr)


if __name__ == "__main__":
    main()

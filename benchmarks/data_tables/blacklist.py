"""The blacklist: the whole stage, its two steps alone, and what peers take for one of them.

The large list has 60,000 made-up hosts under real suffixes. Half of the URLs are of a few hosts, as on the web, others
of any; some hundredths have ports, other scripts or Punycode. tldextract is given the hosts of the same list.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from measuring import Row, Usage, rate_of, webtext
from webtext_prep.stages.blacklist import Blacklist, taken_apart
from webtext_prep.urls.urls import parts_of, suffix_list

TITLE = "blacklist: a list of URLs, a tenth of them repeated, 3% of them with ports or other scripts"
PEERS = ("tldextract", "xxhash")
GOAL = 100_000
HOSTS = 60_000


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """The command at 16 and 4,096 shards, its steps, and peers."""
    count = 50_000 if quick else 250_000
    path = write_list(folder / "urls.txt", count, HOSTS // 4)
    large = write_list(folder / "large.txt", 4 * count, HOSTS)
    usage, small = _run(large, folder / "large", 16), _run(path, folder / "small", 16)
    size = large.stat().st_size / 1e6
    yield Row("ours: the whole stage", 4 * count / usage.cpu, "URLs", size / usage.cpu, GOAL, usage.peak,
              f"{4 * count:,} URLs of {HOSTS:,} hosts, 16 shards, start-up included")  # fmt: skip
    yield Row(
        "ours: the whole stage, a smaller list", count / small.cpu, "URLs", peak=small.peak, note=f"{count:,} URLs"
    )
    rest = usage.cpu - small.cpu
    yield Row("ours: the whole stage but its start-up", 3 * count / rest, "URLs", note="the difference of these two")
    many = _run(path, folder / "many", 4096)
    yield Row("ours: the whole stage, 4,096 shards", count / many.cpu, "URLs", peak=many.peak, note=f"{count:,} URLs")
    yield from _one_by_one(large.read_text(encoding="utf-8").split("\n"))


def _run(path: Path, output: Path, shards: int) -> Usage:
    return webtext("blacklist", "--input", path, "--output", output, "--shards", str(shards), "--workers", "1")


def _one_by_one(urls: list[str]) -> Iterator[Row]:
    """The functions that define the result, and what others take for a part of it."""
    settings: dict[str, Any] = {"unit": "URLs", "repeats": 1}
    stage, extract = Blacklist(), suffix_list()

    def judge() -> None:
        judged = stage.judging()
        for url in urls:
            judged(url, *taken_apart(url))

    yield rate_of("ours: judging alone", judge, len(urls), **settings)
    yield rate_of("ours: host, path and key alone", lambda: [parts_of(url) for url in urls], len(urls), **settings)
    hosts = [url.split("/")[2] for url in urls if "://" in url]
    yield rate_of("tldextract: names of hosts alone", lambda: [extract(host) for host in hosts], len(hosts), **settings)
    yield rate_of("Python: urlsplit alone", lambda: [urlsplit(url) for url in urls], len(urls), **settings)


def write_list(path: Path, count: int, number_of_hosts: int) -> Path:
    """A list of URLs, the same each time."""
    source = random.Random(count)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randint(3, 9))) for _ in range(20_000)]
    suffixes = ["com"] * 10 + ["org", "net", "co.uk", "de", "io", "ac.jp", "fr", "com.br", "blogspot.com", "github.io"]
    hosts = [f"{source.choice(['www.', '', 'news.'])}{source.choice(words)}-{n}.{source.choice(suffixes)}"
             for n in range(number_of_hosts)]  # fmt: skip
    odd = ["b\u00fccher.example", "xn--bcher-kva.example", "example.org:8080"]
    kinds = ["", ".html", ".html", ".php", "/", ".jpg", ".asp?id=7&page=2", "?utm_source=x#top"]
    with path.open("w", encoding="utf-8") as file:
        earlier: list[str] = []
        for _ in range(count):
            if earlier and source.random() < 0.1:
                url = source.choice(earlier)
            else:
                of_few = source.random() < 0.5
                host = hosts[min(int(source.paretovariate(0.4)), len(hosts)) - 1] if of_few else source.choice(hosts)
                host = source.choice(odd) if source.random() < 0.03 else host
                parts = "/".join(source.choices(words, k=source.randint(1, 6)))
                url = f"{source.choice(['http', 'https'])}://{host}/{parts}{source.choice(kinds)}"
                earlier.append(url)
            file.write(url + "\n")
    return path

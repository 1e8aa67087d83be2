"""The Wayback Machine and Common Crawl on loopback, by their documented protocols, with misbehaviour to order."""

from __future__ import annotations

import collections
import contextlib
import datetime
import email.utils
import gzip
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from archives import Archive
from pages_on_loopback import Request, servers_of

from webtext_prep.crawl.archives.cdx import surt

WAYBACK, FILES, INDEX, LIVE = "127.0.0.21", "127.0.0.22", "127.0.0.23", "127.0.0.24"
"""Hosts of the Wayback Machine, of Common Crawl's files and list of crawls, and of a site that is there today."""
HTML = "text/html; charset=utf-8"


@dataclass
class Captured:
    """What an archive has of a URL at one time."""

    time: str
    body: bytes
    status: int = 200
    kind: str = HTML
    headers: dict[str, str] = field(default_factory=dict)
    is_own: bool = False  # a page of the archive's own, in place of a capture


def readable(time: str) -> str:
    return datetime.datetime.strptime(time, "%Y%m%d%H%M%S").strftime("%Y-%m-%dT%H:%M:%SZ")


class WebArchives:
    """Both archives, and a site. `wayback` and `crawls` say what they have; `trouble` may answer in their place.

    `live` maps a path of the site to a status and a page; whatever else is asked for there is 404.
    """

    def __init__(self) -> None:
        self.wayback: dict[str, list[Captured]] = collections.defaultdict(list)
        self.crawls: dict[str, dict[str, list[Captured]]] = {}
        self.files: dict[str, bytes] = {}
        self.live: dict[str, tuple[int, bytes]] = {}
        self.entries: dict[str, list[dict[str, str]]] = {}  # of the index of each crawl
        self.truncated: set[tuple[str, str]] = set()  # crawls and URLs of records that the crawler has cut off
        self.shortened: set[tuple[str, int]] = set()  # places in files of which the end is not sent
        self.moved: dict[tuple[str, int], tuple[int, int]] = {}  # places in place of which others are sent
        self.listed_as: dict[str, str] = {}  # captures that the Wayback Machine's index says to be of another page
        self.robots = b""
        self.trouble: Callable[[Any], bool] = lambda request: False
        self.asked: list[tuple[str, str, float]] = []  # host, path, when
        self.asked_live: list[str] = []
        self.at_once: collections.Counter[str] = collections.Counter()
        self.most_at_once: collections.Counter[str] = collections.Counter()
        self.answers: int | None = None  # so many, and then nothing
        self.condition = threading.Condition()
        archives = self

        class Handler(Request):
            def do_GET(self) -> None:
                self.host = self.headers["Host"].partition(":")[0]
                if self.host == LIVE:
                    archives.asked_live.append(self.path)
                    self.answer(*archives.live.get(self.path, (404, b"gone")), HTML)
                    return
                group = WAYBACK if self.host == WAYBACK else FILES
                with archives.condition:
                    part = self.headers["Range"] or ""
                    archives.asked.append((self.host, f"{self.path} {part}".strip(), time.monotonic()))
                    archives.at_once[group] += 1
                    archives.most_at_once[group] = max(archives.at_once[group], archives.most_at_once[group])
                    archives.condition.notify_all()
                try:
                    with contextlib.suppress(ConnectionError):
                        if archives.answers is not None and len(archives.asked) > archives.answers:
                            self.connection.recv(1)
                        elif not archives.trouble(self):
                            archives._answer(self)
                finally:
                    with archives.condition:
                        archives.at_once[group] -= 1

        self.servers = servers_of((WAYBACK, FILES, INDEX, LIVE), Handler)
        self.port = self.servers[0].server_port

    def stop(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    @property
    def settings(self) -> dict[str, str]:
        """Where they are, as settings of a rescue."""
        at = {name: f"http://{host}:{self.port}" for name, host in
              (("wayback", WAYBACK), ("common_crawl", FILES), ("common_crawl_index", INDEX))}  # fmt: skip
        return {f"{name}_address": url for name, url in at.items()}

    def url(self, path: str) -> str:
        return f"http://{LIVE}:{self.port}{path}"

    def pages(self, host: str = "") -> list[tuple[str, str, float]]:
        """What was asked for but robots.txt, of one archive (by its first host) or both."""
        hosts = {"": (WAYBACK, FILES, INDEX), WAYBACK: (WAYBACK,), FILES: (FILES, INDEX)}[host]
        return [entry for entry in self.asked if entry[0] in hosts and entry[1] != "/robots.txt"]

    # The protocols

    def _answer(self, request: Any) -> None:
        parts = urlsplit(request.path)
        if parts.path == "/robots.txt":
            request.answer(200 if self.robots else 404, self.robots)
        elif request.host == WAYBACK:
            self._wayback(request, parts)
        else:
            self._file(request, parts.path)

    def _wayback(self, request: Any, parts: Any) -> None:
        if parts.path == "/cdx/search/cdx":
            query = parse_qs(parts.query)
            assert query["output"] == ["json"] and "statuscode:200" in query["filter"]
            asked, key = query["url"][0], surt(query["url"][0])
            # As the real index has it, unless an exact match is asked for.
            begin = asked.removesuffix("*") if asked.endswith("*") and "matchType" not in query else "no URL"
            found = [url for url in self.wayback if surt(url) == key or url.startswith(begin)]
            rows = [(one.time, self.listed_as.get(url, url)) for url in found for one in self.wayback[url]]
            if "closest" in query:
                wanted = int(query["closest"][0])
                rows.sort(key=lambda row: abs(int(row[0]) - wanted))
                rows = rows[: int(query["limit"][0])]
            else:
                rows = sorted(rows)[int(query["limit"][0]) :]
            request.answer(200, json.dumps([query["fl"][0].split(","), *rows] if rows else []).encode())
            return
        found = re.fullmatch(r"/web/(\d{14})id_/(.*)", request.path)
        assert found is not None, request.path
        time_asked, url = found.groups()
        captured = [one for one in self.wayback.get(url, []) if one.time == time_asked]
        if not captured:
            request.answer(404, b"<html><title>Not in archive</title></html>", HTML)
            return
        (one,) = captured
        own = {} if one.is_own else {
            "Memento_Datetime": email.utils.format_datetime(
                datetime.datetime.strptime(one.time, "%Y%m%d%H%M%S").replace(tzinfo=datetime.UTC), usegmt=True
            ),
            "X_Archive_Src": "some.warc.gz",
            "X_Archive_Orig_Server": "old",
        }  # fmt: skip
        request.answer(one.status, one.body, one.kind, **(own | one.headers))

    def _file(self, request: Any, path: str) -> None:
        if path == "/collinfo.json":
            listed = [{"id": name, "from": f"{name[8:12]}-{_month(name)}-01T00:00:00"} for name in self.crawls]
            request.answer(200, json.dumps(listed).encode(), "application/json")
            return
        data = self.files.get(path)
        if data is None:
            request.answer(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"])
        assert found is not None
        begin, end = int(found[1]), int(found[2]) + 1
        if begin >= len(data):
            request.answer(416, Content_Range=f"bytes */{len(data)}")
            return
        start, length = self.moved.get((path, begin), (begin, end - begin))
        part = data[start : start + length]
        if (path, begin) in self.shortened:
            part = part[: len(part) // 2]
        there = f"bytes {begin}-{begin + len(part) - 1}/{len(data)}"
        request.answer(206, part, "application/octet-stream", Content_Range=there)

    def write_crawls(self, lines_in_block: int = 3, fill: int = 40) -> None:
        """Make the files of the crawls: WARC files, blocks of lines, and `cluster.idx`; `fill` pages of others too."""
        for name, urls in self.crawls.items():
            archive, lines = Archive(), []
            for url, captures in urls.items():
                for one in captures:
                    begin = len(archive.data)
                    more = {"WARC-Date": readable(one.time)}
                    more |= {"WARC-Truncated": "length"} if (name, url) in self.truncated else {}
                    archive.response(url, one.body, f"{one.status} OK", more=more, Content_Type=one.kind)
                    entry = {"url": url, "mime": one.kind.partition(";")[0], "status": str(one.status), "digest": "X"}
                    entry |= {"offset": str(begin), "length": str(len(archive.data) - begin)}
                    entry |= {"filename": f"crawl-data/{name}/0.warc.gz"}
                    self.entries.setdefault(name, []).append(entry)
                    lines.append(f"{surt(url)} {one.time} {json.dumps(entry)}")
            lines += [f"{surt(f'http://filler{n:03}.org/')} 20190101000000 {{}}" for n in range(fill)]
            lines.sort()
            blocks, table = b"", []
            for start in range(0, len(lines), lines_in_block):
                block = gzip.compress("".join(f"{line}\n" for line in lines[start : start + lines_in_block]).encode())
                key = " ".join(lines[start].split(" ")[:2])
                table.append(f"{key}\tcdx-00000.gz\t{len(blocks)}\t{len(block)}\t{len(table)}\n")
                blocks += block
            folder = f"/cc-index/collections/{name}/indexes"
            self.files[f"{folder}/cdx-00000.gz"] = blocks
            self.files[f"{folder}/cluster.idx"] = "".join(table).encode()
            self.files[f"/crawl-data/{name}/0.warc.gz"] = archive.data


def _month(crawl: str) -> str:
    week = datetime.date.fromisocalendar(int(crawl[8:12]), int(crawl[13:15]), 1)
    return f"{week.month:02}"

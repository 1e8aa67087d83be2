"""`webtext opt-outs`: hosts, not pages, are asked what they say of training; what of a corpus they refuse by now.

The hosts stand in the queues of a crawl, which asks for their files at the pace of a crawl, and for nothing else. Each
answer goes into a file next to the output at once, so that a kill costs the hosts that were being asked.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from command_kit import Progress, atomic_file, setting
from command_kit.atomic import make_folder, remove_file
from webtext_prep import storage
from webtext_prep.commands import Command
from webtext_prep.documents.folders.inputs import find_inputs, is_url_list
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError
from webtext_prep.opt_outs.decisions import decide, decide_by_host
from webtext_prep.opt_outs.hosts import Host, Hosts, encode_host, origin_of, read_hosts
from webtext_prep.opt_outs.preferences import AT_THE_EDGE, HostPreferences, Preference, Rule, Rules
from webtext_prep.opt_outs.signals import ROBOTS_TXT
from webtext_prep.running.processes import run_until_done
from webtext_prep.running.summary import Findings
from webtext_prep.stages.download import Download
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import host_of

SHOWN = 10  # hosts that have changed their mind; `--json` prints all


@dataclass(frozen=True)
class OptOuts(Command):
    """Ask the hosts of some pages what they say of training on them, by robots.txt, tdmrep.json and ai.txt.

    URLS are lists of URLs, or outputs of stages. No page is asked for. Writes a line for each host, which `webtext
    extract --opt-outs-from` reads. Where --output is there already, says which pages are refused now that were not, and
    the other way round. Killed, the same command goes on."""

    name: ClassVar[str] = "opt-outs"
    order: ClassVar[int] = 35
    summary: ClassVar[str] = "pages, or a corpus -> what their hosts say of training on them, and what to take down"

    urls: tuple[str, ...] = setting((), "lists of URLs, or outputs of stages", metavar="URLS", positional=True)
    output: str = setting("", "the file to write, a line for each host", metavar="HOSTS.jsonl")
    takedown: str = setting("", "also write the refused URLs, for `webtext takedown --urls`", metavar="FILE")
    user_agent: str = setting(Download.user_agent, "User-Agent header; the part before / is matched against robots.txt")
    allow_private_addresses: Literal["none", "loopback", "all"] = setting("none", "also connect to private addresses")
    delay: float = setting(Download.delay, "seconds between requests to one host", metavar="SECONDS", ge=0, le=3600)

    def find(self) -> Findings:
        """Ask, compare, write. Raises InputError for input that is not there, or a file that holds no hosts."""
        if not self.urls or not self.output:
            raise InputError("webtext opt-outs needs URLS and --output HOSTS.jsonl: say what to read, where to write.")
        written = [storage.location(path) for path in (self.output, self.takedown) if path]
        if not all(isinstance(place, Path) for place in written) or len({*written}) < len(written):
            raise InputError(
                f"--output {self.output} and --takedown {self.takedown or '(none)'} must be two files on this machine: "
                "choose other paths."
            )
        files = find_inputs(self.urls, accepts=is_url_list, kinds="URL lists, or outputs of stages").files
        output, part = Path(self.output), Path(f"{self.output}.part")
        make_folder(output.parent)
        earlier = Hosts([output] if output.is_file() else [])
        origins = dict.fromkeys(origin_of(url) for urls in _pages(files) for url in urls)
        known = {host.host: host for host in _asked_already(part) if host.host in origins}
        left = [origin for origin in origins if origin not in known]
        with Progress(self.name, "hosts", len(origins), done=len(known)) as progress, part.open("ab") as file:

            def note(host: Host) -> None:
                if host.outcome != "ok":  # what it said before holds until it says something else
                    said = earlier.of(host.host)
                    host.rules, host.unreadable = said.rules, said.unreadable
                if host.outcome in AT_THE_EDGE:
                    words = f"{host.outcome}: the answer to its robots.txt"
                    refusal = Rules(host.outcome, f"{host.host}{ROBOTS_TXT}", [Rule("/", False, words)])
                    host.rules = [*(rules for rules in host.rules if rules.signal not in AT_THE_EDGE), refusal]
                known[host.host] = host
                file.write(encode_host(host) + b"\n")
                file.flush()
                progress.advance()

            if left:
                run_until_done(self._ask(left, note))
        found = {"hosts": len(known), "asked_in_vain": sum(host.outcome != "ok" for host in known.values())}
        # Compared before the earlier file is replaced: what is killed here can be compared again.
        found |= self._refused(files, Hosts([part]), earlier)
        with atomic_file(output) as finished:
            finished.writelines(encode_host(known[origin]) + b"\n" for origin in sorted(known))
        remove_file(part)  # it would come back after a power cut, and its hosts not be asked again
        return Findings(_shown(found), found | {"output": self.output})

    async def _ask(self, origins: list[str], note: Callable[[Host], None]) -> None:
        # What the network needs takes a second to import, which `--help` should not.
        from webtext_prep.crawl.frontier.crawler import Crawler
        from webtext_prep.crawl.frontier.queues import Visit
        from webtext_prep.crawl.http.client import Reply

        allowed = self.allow_private_addresses
        asked = Download(user_agent=self.user_agent, allow_private_addresses=allowed, delay=self.delay)
        settings = asked.within_limits()

        async def finish(visit: Visit, reply: Reply) -> str:
            preferences = visit.rules.preferences if visit.rules is not None else HostPreferences()
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            note(Host(visit.asked, "", str(reply.outcome), now, preferences.rules, preferences.unreadable))
            return reply.outcome

        async with settings.client(settings.concurrency, settings.max_bytes) as client:
            visits = (Visit(origin, origin, is_for_rules=True) for origin in origins)
            await Crawler(settings, client, finish).run(visits)

    def _refused(self, files: Sequence[Location], now: Hosts, earlier: Hosts) -> dict[str, Any]:
        """The pages that their hosts refuse, by signal; and the hosts that have changed their mind of some page."""
        signals, refuses, allows, pages = Counter[str](), dict[str, None](), dict[str, None](), 0
        with atomic_file(self.takedown) if self.takedown else contextlib.nullcontext() as file:
            for urls in _pages(files):
                refusal, was = (_refusal(urls, hosts) for hosts in (now, earlier))
                pages += 1
                if refusal is not None:
                    signals[refusal[1].signal] += 1
                    if file is not None:
                        file.write(urls[0].encode("utf-8", "replace") + b"\n")
                if was is None and refusal is not None:
                    refuses[refusal[0]] = None
                elif was is not None and refusal is None:
                    allows[was[0]] = None
        refused = {"pages": pages, "refused": signals.total(), "by_signal": dict(signals.most_common())}
        return {**refused, "refuse_now": list(refuses), "refuse_no_more": list(allows)}


def _pages(files: Iterable[Location]) -> Iterator[list[str]]:
    """The URLs of pages on the web: as they were asked for, and where redirects led, if that is known."""
    for row in itertools.chain.from_iterable(map(read_urls, files)):
        found = [url for url in (row.url, row.metadata.get("final_url")) if isinstance(url, str) and host_of(url)]
        if found:
            yield found


def _refusal(urls: Sequence[str], hosts: Hosts) -> tuple[str, Preference] | None:
    """The host of a page, or one on the way to it, that refuses it, and its preference."""
    for url in urls:
        host = hosts.of(url)
        found = decide(url, host, (), b"").refusal if url == urls[-1] else decide_by_host(url, host)
        if found is not None:
            return origin_of(url), found
    return None


def _asked_already(part: Path) -> list[Host]:
    """The hosts that a run which was killed has asked. What it was writing is taken out of the file.

    That is an unfinished line, or after a power cut all from the first zero byte on.
    """
    if not part.is_file():
        return []
    os.truncate(part, part.read_bytes().partition(b"\0")[0].rfind(b"\n") + 1)
    return list(read_hosts(part))


def _shown(found: dict[str, Any]) -> str:
    shown = found | {key: ", ".join(found[key][:SHOWN]) or "none" for key in ("refuse_now", "refuse_no_more")}
    shown["by_signal"] = ", ".join(f"{signal} {count:,}" for signal, count in found["by_signal"].items()) or "none"
    return "\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in shown.items())

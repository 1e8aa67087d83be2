"""Writes what the benchmarks' pages show of `results/`: the headlines with their chart, and the tables of training.

    ./uvw run benchmarks/pages.py

Every script does so when it saves its result; called alone, it writes all of them again. `data.py` and `extraction.py`
write their own tables. A headline whose row is not in the results is left out, and named.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = Path(__file__).resolve().parents[1] / "docs"

CHART = DOCS / "images" / "benchmarks.svg"

STAGES = (
    ("`urls`: dumps to URLs", "urls", "ours: the whole stage, 71% kept", "a plain loop", "a plain loop"),
    ("`blacklist`", "blacklist", "ours: the whole stage", "tldextract", "tldextract alone"),
    ("fetching small pages", "download", "ours: fetching alone", "aiohttp alone", "aiohttp, no rules"),
    ("`download`, `learned`", "download", "ours: download with learned", "learned alone", "the extractor alone"),
    ("`extract`, resiliparse", "extract", "ours: the whole stage, resiliparse", "FastWARC and resiliparse", "a loop"),
    ("`merge`", "merge", "ours: the whole stage", "a plain loop", "a plain loop"),
    ("`clean`", "clean", "ours: the whole stage, langdetect", "langdetect: `detect`", "langdetect alone"),
    ("repair of text", "clean", "ours: repair", "ftfy", "ftfy"),
    ("`filter --model`", "filter", "ours: filter --model --keep-share", "fastText", "fastText alone"),
    ("MinHash signatures", "dedup", "ours: signatures, word:5", "datasketch: update_batch, word", "datasketch"),
    ("`dedup-passages`", "dedup_passages", "ours: the whole stage", "plain Python", "a set of windows"),
    ("`decontaminate`", "decontaminate", "ours: the whole stage", "plain Python", "a loop, no cutting"),
    ("`train-tokenizer`", "train_tokenizer", "ours: the whole stage", "tokenizers", "Hugging Face's trainer"),
    ("`tokenize`", "tokenize", "ours: the whole stage", "tiktoken alone", "tiktoken alone"),
    ("`tokenize`, again", "tokenize", "ours: the whole stage", "gigatoken alone", "gigatoken alone"),
)
"""Headlines of `data.json`: name, table, how our row begins, how the peer's begins, what the peer is called."""


def write_tables(script: str, markdown: str) -> None:
    """Put the tables of a script between its two lines, `begin: SCRIPT` and `end: SCRIPT`, of the page with these."""
    begin, end = (f"<!-- {word}: {script} -->\n" for word in ("begin", "end"))
    for page in sorted(DOCS.rglob("*.md")):
        before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
        if mark:
            after = rest.partition(end)[2]
            page.write_text(f"{before}{begin}\n{markdown}\n\n{end}{after}", encoding="utf-8")
            return
    print(f"no page of docs/ has the line {begin.strip()}, where these tables would go", file=sys.stderr)


class Headline(NamedTuple):
    """One row: what was measured, ours and a peer's as numbers, the peer's name, and the unit. More is better."""

    what: str
    ours: float
    peer: float | None
    name: str
    unit: str


def headlines() -> Iterator[Headline]:
    """All that the results have, in the order of a corpus and its model."""
    tables = _result("data").get("tables", {})
    for what, table, ours, peer, name in STAGES:
        rows = tables.get(table, {}).get("rows", [])
        own, other = (_beginning(rows, words) for words in (ours, peer))
        if own and other:
            yield Headline(what, own["rate"], other["rate"], name, f"{own['unit']}/s")
        else:
            print(f"no headline of {table}: {ours!r} or {peer!r} is not in results/data.json", file=sys.stderr)
    rows = _result("extraction").get("rows", [])
    own = next((row for row in rows if row["extractor"] == "`learned`"), None)
    for peer in ("trafilatura", "chromerag", "ChromeRAG"):
        other = next((row for row in rows if row["extractor"] == peer), None)
        if own and other:
            yield Headline("`learned`: F1", _f1(own), _f1(other), peer, "")
            yield Headline("`learned`: speed", own["pages a second"], other["pages a second"], peer, "pages/s")
    for row in _result("train").get("results", []):
        seconds = row.get("cpu_seconds_per_step", {})
        if row["what"].startswith("124M") and "transformers" in seconds:
            yield Headline(
                f"a step, {row['what']}", 1 / seconds["ours"], 1 / seconds["transformers"], "transformers", "steps/s"
            )
    written = {(row["what"], row["batch"]): row["cpu_rate"] for row in _result("generate").get("results", [])}
    for (what, batch), rate in written.items():
        peers = [
            other for (name, count), other in written.items() if count == batch and name.startswith("transformers")
        ]
        if what.startswith("ours") and peers:
            yield Headline(f"124M writes, {batch} at once{what[4:]}", rate, max(peers), "transformers", "tokens/s")


def headline_table(rows: Sequence[Headline]) -> str:
    """The table of headlines as Markdown."""
    lines = ["| | ours | beside it | | times |", "|---|---:|---:|---|---:|"]
    for row in rows:
        ratio = "" if row.peer is None else f"{row.ours / row.peer:.2g}"
        peer = "" if row.peer is None else _number(row.peer)
        lines.append(f"| {row.what} | {_number(row.ours)} {row.unit} | {peer} | {row.name} | {ratio} |")
    return "\n".join(lines)


STYLE = """text{font:14px system-ui,sans-serif;fill:#1c2430}.soft{fill:#5b6472;font-size:12px}.grid{stroke:#e4e1da}
.one{stroke:#5b6472}.more{fill:#2a7f8e}.less{fill:#d98f5c}
@media (prefers-color-scheme: dark){text{fill:#e7e5df}.soft{fill:#a0a8b3}.grid{stroke:#2d353f}.one{stroke:#a0a8b3}
.more{fill:#4fa9b8}.less{fill:#c98a5e}}"""


def chart(rows: Sequence[Headline]) -> str:
    """Bars of how many times as fast or good ours is, on a logarithmic scale, from 1 to either side."""
    known = [(row, row.ours / row.peer) for row in rows if row.peer]
    lowest = min(0.25, *(ratio for _, ratio in known))
    highest = max(4.0, *(ratio for _, ratio in known))
    left, right, top, each = 270, 700, 34, 24
    height = top + each * len(known) + 12

    def x(ratio: float) -> float:
        return left + (right - left) * math.log(ratio / lowest) / math.log(highest / lowest)

    times = Counter(row.what for row, _ in known)
    parts = []
    for level in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128):
        if lowest <= level <= highest:
            kind = "one" if level == 1 else "grid"
            parts.append(f'<path class="{kind}" d="M{x(level):.1f} {top - 8}V{height - 8}"/>')
            parts.append(f'<text class="soft" x="{x(level):.1f}" y="16" text-anchor="middle">{level:g}×</text>')
    for number, (row, ratio) in enumerate(known):
        y = top + each * number
        begin, end = sorted((x(1), x(ratio)))
        beside = f", {row.name}" if times[row.what] > 1 else ""
        name = escape(row.what.replace("`", "") + beside)
        parts.append(f'<text x="{left - 60}" y="{y + 13}" text-anchor="end">{name}</text>')
        kind = "more" if ratio >= 1 else "less"
        parts.append(
            f'<rect class="{kind}" x="{begin:.1f}" y="{y}" width="{max(1, end - begin):.1f}" height="17" rx="2"/>'
        )
        parts.append(f'<text class="soft" x="{right + 56}" y="{y + 13}" text-anchor="end">{ratio:.2g}×</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 760 {height}" width="760" height="{height}">'
        f"<title>How many times as fast or good as what stands beside it</title><style>{STYLE}</style>"
        f"{''.join(parts)}</svg>\n"
    )


def training_table() -> str:
    """CPU seconds of a step, ours beside transformers and a minimal model; then what several processes cost."""
    lines = ["| model, sequences × tokens | ours | transformers | minimal |", "|---|---:|---:|---:|"]
    more = ""
    for row in _result("train").get("results", []):
        seconds = row.get("cpu_seconds_per_step", {})
        if "transformers" in seconds:
            cells = [f"{_number(seconds['ours'])} s"]
            for name in ("transformers", "minimal"):
                cells.append(f"{_number(seconds[name])} s ({row['ours_is_faster_than'][name]:.2f})")
            lines.append(f"| {row['what']} | {' | '.join(cells)} |")
        elif "overhead" in row:
            what = row["what"].capitalize()
            more = f"\n\n{what}: two processes take {row['overhead']:.0%} more CPU time together than one."
    return "\n".join(lines) + more


def generation_table() -> str:
    """Tokens per second of CPU time, by what writes, for each number of texts at once."""
    written: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in _result("generate").get("results", []):
        written.setdefault(row["what"], {})[row["batch"]] = row
    batches = sorted({batch for rows in written.values() for batch in rows})
    heads = [f"{batch} text{'s' * (batch > 1)}" for batch in batches]
    lines = [f"| tokens/s of CPU time | {' | '.join(heads)} | same texts |", "|---|" + "---:|" * (len(batches) + 1)]
    for what, rows in written.items():
        same = min(row["same"] for row in rows.values())
        cells = [_number(rows[batch]["cpu_rate"]) if batch in rows else "" for batch in batches]
        lines.append(f"| {what} | {' | '.join(cells)} | {same:.0%} |")
    return "\n".join(lines)


def serving_table() -> str:
    """Tokens per second of the server's CPU time, for each model."""
    rows = _result("serve").get("rows", [])
    models = list(dict.fromkeys(row["model"] for row in rows))
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        what = "one after another (`--batch-size 1`)" if "one after another" in row["what"] else row["what"]
        what = what.replace("1 clients", "1 client")
        found.setdefault(what, {})[row["model"]] = row["tokens_per_cpu_second"]
    lines = [f"| tokens/s of CPU time | {' | '.join(models)} |", "|---|" + "---:|" * len(models)]
    for what, rates in found.items():
        cells = [_number(rates[model]) if model in rates else "" for model in models]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def structure_table() -> str:
    """How much of code, tables and formulas is exact."""
    counts = _result("structure").get("counts", {})
    lines = ["| | of | exact |", "|---|---:|---:|"]
    for name, count in counts.items():
        kind, _, unit = name.partition(": ")
        if "right" not in unit and count:
            of = f"{count:,} {'' if unit == 'all' else unit}".strip()
            lines.append(f"| {kind} | {of} | {counts.get(f'{kind}: right', 0) / count:.1%} |")
    return "\n".join(lines)


GPU_STEPS = {
    "124M, 32 sequences": ("train-124M", "blocks"),
    "the same, residual stream in bf16": ("residual", "124M"),
    "the same, not compiled": ("train-124M", "not compiled"),
    "a minimal GPT-2, compiled": ("peers", "minimal, compiled"),
    "transformers, compiled": ("peers", "transformers, compiled"),
    "transformers": ("peers", "transformers"),
    "345M, 32 sequences": ("train-345M", "blocks"),
    "345M, residual stream in bf16": ("residual", "345M"),
    "1.5B, 16 sequences, selective checkpointing": ("train-1.5B", "blocks"),
    "1.5B, nothing recomputed": ("train-1.5B", "nothing recomputed"),
    "1.5B, nothing recomputed, residual stream in bf16": ("residual", "1.5B"),
}
"""Rows of the table of `gpu.py`: piece and part."""


def gpu_table() -> str:
    """Training steps on a GPU: time, share of the peak and memory."""
    lines = ["| bf16, 1,024 tokens a sequence | ms | tokens/s | of the peak | GiB |", "|---|---:|---:|---:|---:|"]
    pieces = _result("gpu").get("pieces", {})
    for what, (piece, part) in GPU_STEPS.items():
        row = pieces.get(piece, {"results": {}})["results"].get(part, {})
        if "ms_per_step" not in row:
            continue
        share = f"{row['mfu']:.1%}" if row["mfu"] else ""  # of a GPU whose peak nobody has looked up
        cells = [f"{row['ms_per_step']:.1f}", f"{row['tokens_per_second']:,}", share]
        lines.append(f"| {what} | {' | '.join(cells)} | {row['peak_memory_GiB']:.1f} |")
    return "\n".join(lines)


def write() -> None:
    """Write each of these into its page, and the chart."""
    rows = list(headlines())
    write_tables("pages.py", headline_table(rows))
    CHART.write_text(chart(rows), encoding="utf-8")
    write_tables("train.py", training_table())
    write_tables("generate.py", generation_table())
    write_tables("serve.py", serving_table())
    write_tables("gpu.py", gpu_table())
    write_tables("structure.py", structure_table())


def _result(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return found


def _beginning(rows: Sequence[Mapping[str, Any]], words: str) -> Mapping[str, Any] | None:
    """The row of that name, else the first that begins so."""
    named = [row for row in rows if row["what"] == words and "rate" in row]
    begun = [row for row in rows if row["what"].startswith(words) and "rate" in row]
    return next(iter([*named, *begun]), None)


def _f1(row: Mapping[str, Any]) -> float:
    """Over all sets of pages alike."""
    each = [one["f1"] for one in row.get("folders", {}).values()]
    found: float = sum(each) / len(each) if each else row["f1"]
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    write()

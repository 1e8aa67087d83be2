"""The card of an exported dataset (`README.md`) and its list of domains (`top_domains.csv`).

Names in them come from documents and settings: domains, languages, reasons to drop a document. None may end a table,
the YAML header or a link, or begin one. The card names no path, no time and no machine: the same corpus has the same
card.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from webtext_audit.export.columns import NO_DOMAIN, Column, Count, Measures, TopDomains, by_size, features
from webtext_prep.opt_outs.decisions import SIGNAL
from webtext_prep.opt_outs.wishes import SIGNALS

README, DOMAINS = "README.md", "top_domains.csv"
UNKNOWN = "unknown"
SHOWN_DOMAINS = 20
SHOWN_CHARACTERS = 120
_PUNCTUATION = re.compile(r"([!-+/:-@\[-`{-~])")
_PATH = re.compile(r"[/~\\]|[A-Za-z]:[/\\]|[a-z0-9+.-]+://")
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_LARGER = ((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B"))


@dataclass(frozen=True)
class ExportedCorpus:
    """What a card tells.

    Attributes:
        measures: of the documents in the files.
        columns: all besides `url`, `text` and `metadata`.
        path: the files, as a pattern: `data/train-*.parquet`.
        files: how many.
        size: their bytes.
        license: as the exporter says, or `unknown`.
        top: which domains are listed.
        steps: the record of each step that made the corpus, in their order.
        plain_files: input files that no stage has made.
    """

    measures: Measures
    columns: Sequence[Column]
    path: str
    files: int
    size: int
    license: str
    top: TopDomains
    steps: Sequence[dict[str, Any]]
    plain_files: int


def header(corpus: ExportedCorpus) -> str:
    """The YAML at the beginning of the card, by which `datasets` finds the files and the types of the columns."""
    import yaml

    documents, size, _ = corpus.measures.total
    languages = [name.partition("-")[0] for name, _ in by_size(corpus.measures.languages) if name]
    values = {
        **({"language": list(dict.fromkeys(languages))} if languages else {}),
        "license": corpus.license,
        "size_categories": [next((name for limit, name in (*_SIZES, *_LARGER) if documents < limit), "n>1T")],
        "task_categories": ["text-generation"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": corpus.path}]}],
        "dataset_info": {
            "features": features(corpus.columns),
            "splits": [{"name": "train", "num_bytes": size, "num_examples": documents}],
            "download_size": corpus.size,
            "dataset_size": size,
        },
    }
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n"


def card(corpus: ExportedCorpus) -> str:
    """The dataset card (README.md) of an exported corpus, with its metadata in front."""
    documents, size, tokens = corpus.measures.total
    domains = len(corpus.measures.domains_by_size)
    sections = [
        f"{header(corpus)}\n# Dataset card",
        f"{documents:,} documents: {size:,} bytes of text (UTF-8), {tokens:,} GPT-2 tokens, from "
        f"{_counted(domains, 'domain')}, in {_counted(corpus.files, 'file')}. Made and written by `webtext`.",
        *_sources(corpus),
        *_licences(corpus),
        *_opt_outs(corpus),
        *_making(corpus),
        *_classification(corpus),
        *_deduplication(corpus),
        *_languages(corpus),
        *_columns(corpus),
    ]
    return "\n\n".join(sections) + "\n"


def domain_list(corpus: ExportedCorpus) -> str:
    """The list of the largest domains: a table of comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "domain", "documents", "bytes", "gpt2_tokens", "share_of_bytes"])
    domains, size = corpus.measures.domains_by_size, corpus.measures.total[1]
    for rank, (name, count) in enumerate(domains[: corpus.top.of(len(domains))], 1):
        writer.writerow([rank, name, *count, f"{count[1] / size if size else 0:.8f}"])
    return text.getvalue()


def plain(value: Any) -> str:
    """Any text as text in Markdown: one line, no markup, no link, nothing that is not seen, and not too long."""
    seen = "".join(" " if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") else sign for sign in str(value))
    short = " ".join(seen.split())
    if len(short) > SHOWN_CHARACTERS:
        short = f"{short[: SHOWN_CHARACTERS - 3]}..."
    return re.sub(r"(?i)\bwww\.", r"www\.", _PUNCTUATION.sub(r"\\\1", short))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def _numbers(count: Count, size: int) -> list[str]:
    return [*(f"{number:,}" for number in count), _percent(count[1], size)]


def _sources(corpus: ExportedCorpus) -> Iterable[str]:
    size = corpus.measures.total[1]
    domains = corpus.measures.domains_by_size
    rows = [[f"`{name}`", *_numbers(count, size)] for name, count in domains[:SHOWN_DOMAINS]]
    if len(domains) > SHOWN_DOMAINS:
        others = [sum(column) for column in zip(*(count for _, count in domains[SHOWN_DOMAINS:]), strict=True)]
        rows.append([f"{len(domains) - SHOWN_DOMAINS:,} other domains", *_numbers(others, size)])
    if NO_DOMAIN in corpus.measures.domains:
        rows.append(["no web address", *_numbers(corpus.measures.domains[NO_DOMAIN], size)])
    yield "## Sources"
    yield _table(["domain", "documents", "bytes", "GPT-2 tokens", "share of bytes"], rows)
    yield (
        "A domain is the registered name: `example.co.uk` for `news.example.co.uk`. Tokens are counted in the text "
        "alone, without a mark of a document's end. Each document's `url` says where it comes from."
    )
    if archived := sum(corpus.measures.kinds.get("archive", {}).values()):
        yield (
            f"{_counted(archived, 'document')} were gone when they were asked for, and came from web archives: `url` "
            "is the original one, `archive` says which archive, and `captured_at` the time of the capture."
        )
    listed, of_all = corpus.top.of(len(domains)), _counted(len(domains), "domain")
    yield (
        f"`{DOMAINS}` lists the largest {listed:,} of {of_all}, by bytes of text. The European Commission's template "
        "for the public summary of training content (Article 53(1)(d) of Regulation "
        "(EU) 2024/1689; published in July 2025) asks providers of general-purpose AI models for such a list: of the "
        "top 10% of domain names by size of the content scraped, and of small and medium-sized enterprises for the top "
        "5% or 1,000. It asks for more than this list, and counts everything that a model is trained on. This is no "
        "legal advice: read the template that is in force."
    )


def _licences(corpus: ExportedCorpus) -> Iterable[str]:
    yield "## Licences"
    if corpus.license == UNKNOWN:
        yield (
            "**The licences of the documents are unknown.** None was looked up. A text found on the web belongs to "
            "whoever wrote it, unless they say otherwise; that it is in this dataset grants no right to it."
        )
    else:
        yield (
            f"Whoever exported this dataset states the licence {plain(corpus.license)}. The licences of the single "
            "documents were not looked up."
        )
    yield from _personal_data(corpus)


def _personal_data(corpus: ExportedCorpus) -> Iterable[str]:
    """What `clean --mask` has replaced, over all steps."""
    names = {"masked_email": "e-mail address", "masked_ip": "public IP address"}
    masked = {name: sum(step.get("notes", {}).get(name, 0) for step in corpus.steps) for name in names}
    asked = {f"masked_{name}" for step in corpus.steps for name in step.get("settings", {}).get("mask", ())}
    parts = [
        f"{number:,} {names[name]}{'' if number == 1 else 'es'}" for name, number in masked.items() if name in asked
    ]
    if parts:
        yield (
            f"{' and '.join(parts)} were replaced by placeholders. No stage looks for other personal data: "
            "what is in the documents is in the dataset."
        )
    else:
        yield "No stage of `webtext` has looked for personal data; what is in the documents is in the dataset."


def _opt_outs(corpus: ExportedCorpus) -> Iterable[str]:
    """What owners say of training, as the steps that fetched the pages have counted it."""
    did = {"obey": "left out", "record": "kept and marked (`opt_out`)", "ignore": "not looked for"}
    asked = {did[step["settings"]["opt_outs"]] for step in corpus.steps if "opt_outs" in step.get("settings", {})}
    notes = Counter[str]()
    for step in corpus.steps:
        notes.update(step.get("notes", {}))
    told = [f"{plain(signal)} {notes[key]:,}" for signal in SIGNALS if notes[key := f"{SIGNAL}_{signal}"]]
    if asked:
        yield "## Opt-outs"
        how, counts = " or ".join(sorted(asked)), ", ".join(told) or "none was found"
        yield f"Pages whose owners refuse training by machine-readable means are {how}. By signal: {counts}."


def _making(corpus: ExportedCorpus) -> Iterable[str]:
    yield "## How it was made"
    if not corpus.steps:
        yield "Not recorded: the documents were exported from files that no stage of `webtext` has made."
        return
    rows = []
    for step in corpus.steps:
        dropped = sorted(step.get("dropped", {}).items(), key=lambda entry: (-entry[1], entry[0]))
        reasons = ", ".join(f"{plain(reason)} {count:,}" for reason, count in dropped)
        if step.get("added"):
            reasons = f"{reasons or 'none'}; further pieces of documents that were cut: {step['added']:,}"
        rows.append([plain(step["stage"]), f"{step['in']:,}", f"{step['out']:,}", reasons or "none"])
    yield _table(["stage", "in", "out", "dropped, by reason"], rows)
    if corpus.plain_files:
        yield f"Besides came in {_counted(corpus.plain_files, 'file')} that no stage has recorded."
    yield "The settings of each stage:"
    yield "\n".join(f"- {plain(step['stage'])}: {_settings(step) or 'none'}" for step in corpus.steps)


def _settings(step: dict[str, Any]) -> str:
    """The settings that are not empty. Of paths only the last part: where files lay is nobody's business."""
    shown = []
    for name, value in step.get("settings", {}).items():
        if value not in ("", [], None):
            values = value if isinstance(value, list) else [value]
            texts = [
                _without_folders(one) if isinstance(one, str) else msgspec.json.encode(one).decode() for one in values
            ]
            shown.append(f"{plain(name)} {plain(', '.join(texts))}")
    return "; ".join(shown)


def _without_folders(value: str) -> str:
    return re.split(r"[/\\]", value.rstrip("/\\"))[-1] if _PATH.match(value) else value


def _classification(corpus: ExportedCorpus) -> Iterable[str]:
    """How a classifier has chosen the documents, where one has."""
    for step in corpus.steps:
        settings, facts = step.get("settings", {}), step.get("facts", {})
        if step["stage"] != "filter" or "scores" not in facts:
            continue
        how = "by a random number, the more likely the higher the score (the rule of GPT-3's paper)"
        if "threshold" in settings:
            how = f"documents with a score of {settings['threshold']:g} or higher"
        elif "lowest_score_kept" in facts:
            how = (
                f"the {settings['keep_share']:.1%} with the highest scores, which is {facts['lowest_score_kept']:g} on"
            )
        of = facts.get("classifier", {})
        learned = (
            f" It was learned from {of['good']:,} good documents and {of['against']:,} others" if "good" in of else ""
        )
        if learned and "auc" in of:
            learned += f"; of held-out ones, a good one has the higher score in {of['auc']:.1%} of all pairs (AUC)"
        yield "## Quality"
        yield (
            f"A classifier scored the documents from 0 to 1 (`quality_score`), and {step['out']:,} of {step['in']:,} "
            f"were kept: {how}.{learned}{'.' if learned else ''} What it takes for good is what its examples have in "
            "common."
        )


def _deduplication(corpus: ExportedCorpus) -> Iterable[str]:
    yield "## Duplicates"
    found = [step for step in corpus.steps if step["stage"] == "dedup"]
    for step in found:
        count = sum(step.get("dropped", {}).values())
        yield (
            f"Near-duplicates were removed: {count:,} of {step['in']:,} documents. Candidates were found by MinHash "
            f"and verified by the exact Jaccard similarity of their shingles. Settings: {_settings(step)}."
        )
    if not found:
        yield "No stage looked for near-duplicates, as far as is recorded."
    for step in (step for step in corpus.steps if step["stage"] == "dedup-passages"):
        count = step.get("notes", {}).get("cut", 0)
        what = "Passages that stand earlier in the corpus"
        yield f"{what} were cut out of {count:,} of {step['in']:,} documents. Settings: {_settings(step)}."
    merged = sum(step.get("dropped", {}).get("duplicate_url", 0) for step in corpus.steps)
    if merged:
        yield f"{merged:,} documents were dropped because their URL came up before."


def _languages(corpus: ExportedCorpus) -> Iterable[str]:
    size = corpus.measures.total[1]
    rows = [[name or "not recorded", *_numbers(count, size)] for name, count in by_size(corpus.measures.languages)]
    yield "## Languages"
    yield _table(["language", "documents", "bytes", "GPT-2 tokens", "share of bytes"], rows)
    yield "As a detector told them from the text; such a verdict may be wrong."


def _columns(corpus: ExportedCorpus) -> Iterable[str]:
    documents = corpus.measures.total[0]
    rows = [["`url`", "string", _percent(documents, documents)], ["`text`", "string", _percent(documents, documents)]]
    for column in corpus.columns:
        having = sum(corpus.measures.kinds.get(column.name, {}).values())
        rows.append([f"`{column.name}`", plain(column.kind), _percent(having, documents)])
    rows.append(["`metadata`", "JSON object in a string", "where needed"])
    yield "## Columns"
    yield _table(["column", "type", "documents that have it"], rows)
    yield (
        "`metadata` holds what fits no column: rare keys, objects, values of another type. `webtext merge` reads the "
        "files back to the same documents."
    )
    if is_guessed(corpus.path):
        yield f"{GUESSED} Parquet has no such trouble."


GUESSED = (
    "In JSON lines the `datasets` library (5.2.0) takes text that looks like a date for a time, also where it is told "
    "that the column is text: `2020-01-01` becomes `2020-01-01 00:00:00`, and an offset is lost."
)
"""What happens to JSON lines where pyarrow's reader of JSON guesses their types, which no setting stops."""


def is_guessed(path: str) -> bool:
    """Whether readers of these files guess the types of their columns."""
    return ".jsonl" in path

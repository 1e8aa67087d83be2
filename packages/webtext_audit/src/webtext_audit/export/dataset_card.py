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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from webtext_audit.export.columns import NO_DOMAIN, Column, Count, Measures, by_size, features, listed
from webtext_prep.opt_outs.decisions import SIGNAL
from webtext_prep.opt_outs.preferences import SIGNALS

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
        top: which domains are listed, as `--top-domains` says.
        steps: the record of each step that made the corpus, in their order.
        plain_files: input files that no stage has made.
    """

    measures: Measures
    columns: Sequence[Column]
    path: str
    files: int
    size: int
    license: str
    top: str
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
    """The dataset card (README.md) of an exported corpus, with its metadata in front: `card.md.j2`, filled in."""
    import jinja2

    loader = jinja2.PackageLoader("webtext_audit", "export")
    # Markdown, whose values are escaped by `plain` where others have written them.
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)  # noqa: S701
    environment.filters |= {"plain": plain, "count": "{:,}".format}
    return environment.get_template("card.md.j2").render(
        corpus=corpus,
        header=header(corpus),
        domains=corpus.measures.domains_by_size,
        list=DOMAINS,
        listed=listed(corpus.top, len(corpus.measures.domains_by_size)),
        unknown=UNKNOWN,
        sources=_sources(corpus),
        archived=sum(corpus.measures.kinds.get("archive", {}).values()),
        masked=_masked(corpus),
        opt_outs={DID[step["settings"]["opt_outs"]] for step in corpus.steps if "opt_outs" in step.get("settings", {})},
        signals=_signals(corpus),
        making=[_making(step) for step in corpus.steps],
        settings=_settings,
        chosen=_chosen,
        merged=sum(step.get("dropped", {}).get("duplicate_url", 0) for step in corpus.steps),
        languages=[
            [name or "not recorded", *_numbers(count, corpus.measures.total[1])]
            for name, count in by_size(corpus.measures.languages)
        ],
        columns=_columns(corpus),
        guessed=GUESSED if is_guessed(corpus.path) else "",
    )


def domain_list(corpus: ExportedCorpus) -> str:
    """The list of the largest domains: a table of comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "domain", "documents", "bytes", "gpt2_tokens", "share_of_bytes"])
    domains, size = corpus.measures.domains_by_size, corpus.measures.total[1]
    for rank, (name, count) in enumerate(domains[: listed(corpus.top, len(domains))], 1):
        writer.writerow([rank, name, *count, f"{count[1] / size if size else 0:.8f}"])
    return text.getvalue()


def plain(value: Any) -> str:
    """Any text as text in Markdown: one line, no markup, no link, nothing that is not seen, and not too long."""
    seen = "".join(" " if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") else sign for sign in str(value))
    short = " ".join(seen.split())
    if len(short) > SHOWN_CHARACTERS:
        short = f"{short[: SHOWN_CHARACTERS - 3]}..."
    return re.sub(r"(?i)\bwww\.", r"www\.", _PUNCTUATION.sub(r"\\\1", short))


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0.0%"


def _numbers(count: Count, size: int) -> list[str]:
    return [*(f"{number:,}" for number in count), _percent(count[1], size)]


def _sources(corpus: ExportedCorpus) -> list[list[str]]:
    """The largest domains, all others, and what has none: documents, bytes, tokens and share."""
    size, domains = corpus.measures.total[1], corpus.measures.domains_by_size
    rows = [[f"`{name}`", *_numbers(count, size)] for name, count in domains[:SHOWN_DOMAINS]]
    if len(domains) > SHOWN_DOMAINS:
        others = [sum(column) for column in zip(*(count for _, count in domains[SHOWN_DOMAINS:]), strict=True)]
        rows.append([f"{len(domains) - SHOWN_DOMAINS:,} other domains", *_numbers(others, size)])
    if NO_DOMAIN in corpus.measures.domains:
        rows.append(["no web address", *_numbers(corpus.measures.domains[NO_DOMAIN], size)])
    return rows


def _masked(corpus: ExportedCorpus) -> list[str]:
    """What `clean --mask` has replaced, over all steps."""
    names = {"masked_email": "e-mail address", "masked_ip": "public IP address"}
    masked = {name: sum(step.get("notes", {}).get(name, 0) for step in corpus.steps) for name in names}
    asked = {f"masked_{name}" for step in corpus.steps for name in step.get("settings", {}).get("mask", ())}
    return [
        f"{number:,} {names[name]}{'' if number == 1 else 'es'}" for name, number in masked.items() if name in asked
    ]


DID = {"obey": "left out", "record": "kept and marked (`opt_out`)", "ignore": "not looked for"}
"""By `--opt-outs`, what became of pages whose owners refuse training."""


def _signals(corpus: ExportedCorpus) -> list[str]:
    """How often each signal of an opt-out was found by the steps that fetched pages."""
    notes = Counter[str]()
    for step in corpus.steps:
        notes.update(step.get("notes", {}))
    return [f"{plain(signal)} {notes[key]:,}" for signal in SIGNALS if notes[key := f"{SIGNAL}_{signal}"]]


def _making(step: dict[str, Any]) -> list[str]:
    """A step: its name, what came in and went out, and what was dropped for which reason."""
    dropped = sorted(step.get("dropped", {}).items(), key=lambda entry: (-entry[1], entry[0]))
    reasons = ", ".join(f"{plain(reason)} {count:,}" for reason, count in dropped)
    if step.get("added"):
        reasons = f"{reasons or 'none'}; further pieces of documents that were cut: {step['added']:,}"
    return [plain(step["stage"]), f"{step['in']:,}", f"{step['out']:,}", reasons or "none"]


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


def _chosen(step: dict[str, Any]) -> str:
    """How a classifier has chosen the documents of a step."""
    settings, facts = step.get("settings", {}), step["facts"]
    if "threshold" in settings:
        return f"documents with a score of {settings['threshold']:g} or higher"
    if "lowest_score_kept" in facts:
        return f"the {settings['keep_share']:.1%} with the highest scores, which is {facts['lowest_score_kept']:g} on"
    return "by a random number, the more likely the higher the score (the rule of GPT-3's paper)"


def _columns(corpus: ExportedCorpus) -> list[list[str]]:
    """Each column: its name, type, and the share of the documents that have it."""
    documents = corpus.measures.total[0]
    rows = [["`url`", "string", _percent(documents, documents)], ["`text`", "string", _percent(documents, documents)]]
    for column in corpus.columns:
        having = sum(corpus.measures.kinds.get(column.name, {}).values())
        rows.append([f"`{column.name}`", plain(column.kind), _percent(having, documents)])
    return [*rows, ["`metadata`", "JSON object in a string", "where needed"]]


GUESSED = (
    "In JSON lines the `datasets` library (5.2.0) takes text that looks like a date for a time, also where it is told "
    "that the column is text: `2020-01-01` becomes `2020-01-01 00:00:00`, and an offset is lost."
)
"""What happens to JSON lines where pyarrow's reader of JSON guesses their types, which no setting stops."""


def is_guessed(path: str) -> bool:
    """Whether readers of these files guess the types of their columns."""
    return ".jsonl" in path

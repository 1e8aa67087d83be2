"""Every stage of the data side next to its peers, on the same documents, in one run: a table for each stage.

    ./uvw run benchmarks/data.py                  all tables; about half an hour on two cores
    ./uvw run benchmarks/data.py --only dedup,clean
    ./uvw run benchmarks/data.py --quick          small inputs: does everything run?
    ./uvw run benchmarks/data.py --only download --long     each extractor for two minutes or more, no result file

The tables go to results/data.json and, as Markdown, to docs/benchmarks/data.md. Each module of `data_tables/` is one
table: `TITLE`, `PEERS` (packages whose versions belong to the result), and `rows(quick, folder)`, which yields
`measuring.Row`s and may write in `folder`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import data_tables
import measuring
from machine import describe, save
from pages import RESULTS, write_tables


def as_markdown(tables: dict[str, Any]) -> str:
    """All tables as Markdown."""
    parts = []
    for _, table in sorted(tables.items()):
        name, _, inputs = table["title"].partition(": ")
        parts += [
            f"## {name}",
            "",
            f"{inputs[:1].upper()}{inputs[1:]}.",
            "",
            "| | per second and core | MB/s | memory | |",
            "|---|---:|---:|---:|---|",
        ]
        for row in table["rows"]:
            rate = f"{row['rate']:,.0f} {row['unit']}" if "rate" in row else ""
            size = f"{row['megabytes']:,.1f}" if "megabytes" in row else ""
            peak = f"{row['peak']:,.0f} MB" if "peak" in row else ""
            parts.append(f"| {row['what']} | {rate} | {size} | {peak} | {row.get('note', '')} |")
        parts.append("")
    return "\n".join(parts).rstrip()


def main() -> None:
    """Measure what is asked for; tables that were not asked for keep their earlier figures in the JSON file."""
    known = sorted(module.name for module in pkgutil.iter_modules(data_tables.__path__))
    parser = argparse.ArgumentParser(description="Speed, memory and quality of each stage compared with other tools.")
    parser.add_argument("--only", default="", help=f"tables, separated by commas: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="small inputs, no result file")
    parser.add_argument("--long", action="store_true", help="runs of minutes, where a table has them; no result file")
    arguments = parser.parse_args()
    measuring.is_long = arguments.long
    chosen = arguments.only.split(",") if arguments.only else known
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        parser.error(f"there is no table {unknown[0]}: choose among {', '.join(known)}")
    if len(chosen) > 1:  # each in a process of its own, that no table suffers from what another one leaves behind
        for name in chosen:
            flags = [f"--{flag}" for flag in ("quick", "long") if getattr(arguments, flag)]
            subprocess.run([sys.executable, __file__, "--only", name, *flags], check=True)
        return
    place = RESULTS / "data.json"
    tables = json.loads(place.read_bytes())["tables"] if place.exists() else {}
    for name in chosen:
        table = importlib.import_module(f"data_tables.{name}")
        with tempfile.TemporaryDirectory() as folder:
            rows = list(table.rows(arguments.quick, Path(folder)))
        measuring.show(table.TITLE, rows)
        tables[name] = {
            "title": table.TITLE,
            "machine": describe(*table.PEERS),
            "rows": measuring.as_json(rows),
        }
    if not (arguments.quick or arguments.long):
        write_tables("data.py", as_markdown(tables))
        save("data", {"machine": describe("numpy", "numba"), "tables": dict(sorted(tables.items()))})


if __name__ == "__main__":
    main()

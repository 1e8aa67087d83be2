"""Documentation packages of Debian through the whole data side: what each stage takes, drops and gets wrong.

    ./uvw run benchmarks/real_corpus.py --folder FOLDER                       15,000 pages; needs apt-get, and 8 GB
    ./uvw run benchmarks/real_corpus.py --folder FOLDER --pages 150000
    ./uvw run benchmarks/real_corpus.py --folder FOLDER --only fetch,road     some parts, in this order:

    fetch      some 40 packages by `apt-get download`, as web archives; nothing is installed
    road       `plan`, then extract to index-tokens, `report`, and `why` of a document for each reason to drop one
    kills      each stage again, killed in the middle and resumed, from files that came in another order
    compare    near-duplicates beside datatrove's and text-dedup's decisions and the similarity of all pairs
    growth     near-duplicates among the pages of one template, the most frequent, and in a half and a quarter of them
    read       documents beside their pages, the largest, the smallest, pairs, passages: files to read, in FOLDER
    takedown   a package out of the input and all outputs, which is compared with a road without it

What is done is kept in FOLDER and not done again; each size has a folder of its own. Figures go to
results/real_corpus.json.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import describe, save
from pages import RESULTS
from real_corpus_pieces import duplicates, samples
from real_corpus_pieces.packages import PACKAGES, Page, fetch, fetched, read_pages, select
from real_corpus_pieces.road import Road, choose

NAME = "real_corpus"
PARTS = ("fetch", "road", "kills", "compare", "growth", "read", "takedown")
TAKEN_DOWN = "python-django-doc"


def composition(pages: Sequence[Page]) -> dict[str, Any]:
    """How many pages there are, by package, language and generator."""
    kinds = {"packages": "package", "languages": "language", "generators": "generator"}
    counts = {
        name: dict(Counter(getattr(page, key) or "?" for page in pages).most_common()) for name, key in kinds.items()
    }
    return {"pages": len(pages), "html": sum(page.size for page in pages), **counts}


def main() -> None:
    """Do the parts that are asked for."""
    parser = argparse.ArgumentParser(description="Documentation packages of Debian through the whole data side.")
    parser.add_argument("--folder", type=Path, required=True, help="where to work; kept")
    parser.add_argument("--pages", type=int, default=15_000)
    parser.add_argument("--packages", help="those to fetch, separated by commas, instead of the whole list")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--dry-run", action="store_true", help="do not write the results")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}: choose among {', '.join(PARTS)}")
    folder = arguments.folder.resolve()
    if "fetch" in chosen:
        fetch(folder, arguments.packages.split(",") if arguments.packages else PACKAGES)
    pages = choose(read_pages(folder, fetched(folder)), arguments.pages)
    road = Road(folder / str(arguments.pages))
    select(folder, pages, road.folder)
    road.once("corpus", lambda: composition(pages))
    if "road" in chosen:
        road.run()
    works = {
        "kills": road.kills,
        "compare": lambda: duplicates.compare(road),
        "growth": lambda: duplicates.growth(road, pages),
        "read": lambda: samples.draw(road, folder, pages),
        "takedown": lambda: road.takedown(TAKEN_DOWN),
    }
    for part, work in works.items():
        if part in chosen:
            road.once(part, work)
    if not arguments.dry_run:
        keep(folder, arguments.pages, road.known())


def keep(folder: Path, pages: int, found: dict[str, Any]) -> None:
    """Save what is known of a size beside the others."""
    path = RESULTS / f"{NAME}.json"
    sizes = json.loads(path.read_bytes())["sizes"] if path.exists() else {}
    sizes[str(pages)] = found
    records = [json.loads((folder / "packages" / f"{name}.json").read_bytes()) for name in fetched(folder)]
    versions = {record["package"]: record["version"] for record in records}
    machine = describe("numba", "tiktoken", "gigatoken", "warcio")
    ordered = dict(sorted(sizes.items(), key=lambda pair: int(pair[0])))
    save(NAME, {"machine": machine, "packages": versions, "sizes": ordered})


if __name__ == "__main__":
    main()

"""What every result says about where it was measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from command_kit import write_json

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = Path(__file__).resolve().parents[1] / "docs"


def describe(*packages: str) -> dict[str, Any]:
    """Processor, cores, GPU if torch is among the packages and sees one, Python and the versions of `packages`."""
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
    }
    if "torch" in packages:
        import torch

        if torch.cuda.is_available():
            found["gpu"] = torch.cuda.get_device_name()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


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


def save(name: str, content: dict[str, Any]) -> Path:
    """Write `results/NAME.json`, and what pages show of it; print where it is."""
    import pages

    path = RESULTS / f"{name}.json"
    write_json(path, content)
    pages.write()
    print(json.dumps(content["machine"]), path, sep="\n")
    return path

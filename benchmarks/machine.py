"""What every result says about where it was measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

from command_kit import write_json

RESULTS = Path(__file__).resolve().parent / "results"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


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


def write_tables(script: str, markdown: str, page: Path = PAGE) -> None:
    """Put the tables of a script between its two lines of a page, `begin: SCRIPT` and `end: SCRIPT`."""
    begin, end = (f"<!-- {word}: {script} -->\n" for word in ("begin", "end"))
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{markdown}\n{end}{after}", encoding="utf-8")


def save(name: str, content: dict[str, Any]) -> Path:
    """Write `results/NAME.json` and print where it is."""
    path = RESULTS / f"{name}.json"
    write_json(path, content)
    print(json.dumps(content["machine"]), path, sep="\n")
    return path

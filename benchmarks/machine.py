"""What every result says about where it was measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import pages
from command_kit import write_json


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


def save(name: str, content: dict[str, Any]) -> Path:
    """Write `results/NAME.json`, and what pages show of it; print where it is."""
    path = pages.RESULTS / f"{name}.json"
    write_json(path, content)
    pages.write()
    print(json.dumps(content["machine"]), path, sep="\n")
    return path

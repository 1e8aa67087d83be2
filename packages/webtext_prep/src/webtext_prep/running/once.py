"""Phases whose scratch files may be removed once all of them are done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from command_kit import parse_json
from webtext_prep.documents import storage
from webtext_prep.documents.stores.local import boot_id
from webtext_prep.running.markers import digest
from webtext_prep.running.stage import Run


def once(job: Run, name: str, version: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave earlier for the same input, where the files between phases are not flushed to the disk
    since the machine was started.

    Tasks are done as long as their outputs are there. What is remembered here stays done without: the scratch files of
    all but the last of its phases can be removed, and a resumed job does not make them again.

    Args:
        job: the job, whose inputs and scratch folder it depends on.
        name: of the file that remembers it, unique in the stage.
        version: the stage's, and whatever else it depends on besides inputs and settings.
        make: runs phases, and gives a JSON-like value.
    """
    path = job.scratch / f"{name}.json"
    key, boot = digest([version, storage.stamps(job.inputs)]), "" if job.is_flushed else boot_id()
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = parse_json(storage.read_bytes(path))
        if known["key"] == key and known["boot"] in ("", boot):
            return dict(known["result"])
    result = make()
    with storage.create(path, durable=job.is_flushed) as file:
        file.write(json.dumps({"key": key, "boot": boot, "result": result}).encode())
    return result

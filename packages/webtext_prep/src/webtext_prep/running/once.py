"""Phases whose scratch files may be removed once all of them are done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from command_kit import write_json
from webtext_prep.documents import storage
from webtext_prep.documents.stores.local import boot_id
from webtext_prep.running.markers import digest
from webtext_prep.running.stage import Run


def once(job: Run, name: str, version: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` gives, or gave earlier for the same input since the machine was started.

    Tasks are done as long as their outputs are there. What is remembered here stays done without: the scratch files of
    all but the last of its phases can be removed, and a resumed job does not make them again.

    Args:
        job: the job, whose inputs and scratch folder it depends on.
        name: of the file that remembers it, unique in the stage.
        version: the stage's, and whatever else it depends on besides inputs and settings.
        make: runs phases, and gives a JSON-like value.
    """
    path = job.scratch / f"{name}.json"
    key = digest([version, boot_id(), [storage.stamp(place) for place in job.inputs]])
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(path.read_bytes())
        if known["key"] == key:
            return dict(known["result"])
    result = make()
    write_json(path, {"key": key, "result": result}, durable=False)
    return result

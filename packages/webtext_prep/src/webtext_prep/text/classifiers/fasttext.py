"""fastText's classifiers, `.bin` and compressed `.ftz`, read by the package `fasttext-predict`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.errors import InputError

MAGIC = (793712314).to_bytes(4, "little")
"""With which each of its files begins."""
_CHECK = "import sys, fasttext; fasttext.load_model(sys.argv[1]).predict('', k=-1)[0] or sys.exit('it has no labels')"
LABELS = tuple(f"__label__{name}" for name in ("hq", "good", "high", "positive", "pos", "1"))
"""What such models call good documents: the first of these that a model has."""


def check(path: Path) -> None:
    """Read a file, and ask it once, in a process of its own: of a damaged file the reader may crash.

    Raises InputError for a file that can't be used.
    """
    if find_spec("fasttext") is None:
        raise InputError(f"{path} is a model of fastText: install the package fasttext-predict.")
    done = subprocess.run([sys.executable, "-c", _CHECK, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] if done.returncode > 0 else ["it crashes"]
        raise InputError(f"fastText can't read {path} ({(reason or ['no reason'])[0]}): copy the file again.")


class FastTextModel:
    """A classifier of fastText's; a text's score is the probability of one label.

    Args:
        path: its file, which `check` has read.
        label: the label of good documents; empty for the first of `LABELS` that it has.

    Raises InputError for a label that it lacks.
    """

    def __init__(self, path: Path, label: str = "") -> None:
        import fasttext

        self._model: Any = fasttext.load_model(str(path))
        known = self._probabilities([""])[0]
        names = [label, f"__label__{label}"] if label else LABELS
        self.label = next((name for name in names if name in known), "")
        if not self.label:
            shown = ", ".join(sorted(known)[:10]) or "none"
            said = f"no label {label}" if label else f"none of the labels {', '.join(LABELS)}"
            raise InputError(f"{path} has {said}: name that of good documents with --label (it has {shown}).")

    def about(self) -> dict[str, Any]:
        """The label whose probability is the score."""
        return {"label": self.label}

    def scores(self, texts: Sequence[str], *, compiled: bool = True) -> npt.NDArray[np.float64]:
        """The score of each text, from 0 to 1."""
        lines = [text.encode("utf-8", "ignore").decode("utf-8").replace("\n", " ") for text in texts]
        return np.array([found.get(self.label, 0.0) for found in self._probabilities(lines)], np.float64)

    def _probabilities(self, lines: Sequence[str]) -> list[dict[str, float]]:
        found = (self._model.predict(line, k=-1, threshold=-1.0) for line in lines)
        return [dict(zip(labels, map(float, values), strict=True)) for labels, values in found]

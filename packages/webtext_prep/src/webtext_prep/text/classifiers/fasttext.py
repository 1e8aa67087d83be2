"""fastText's classifiers, `.bin` and compressed `.ftz`, read by the package `fasttext-predict`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from webtext_prep.errors import InputError

MAGIC = (793712314).to_bytes(4, "little")
"""With which each of its files begins."""
LABELS = tuple(f"__label__{name}" for name in ("hq", "good", "high", "positive", "pos", "1"))
"""What such models call good documents: the first of these that a model has."""


class FastTextModel:
    """A classifier of fastText's; a text's score is the probability of one label.

    Args:
        path: its file.
        label: the label of good documents; empty for the first of `LABELS` that it has.

    Raises InputError for a file that can't be read, and a label that it lacks.
    """

    def __init__(self, path: Path, label: str = "") -> None:
        try:
            import fasttext
        except ImportError as error:
            raise InputError(f"{path} is a model of fastText: install the package fasttext-predict.") from error
        try:
            self._model: Any = fasttext.load_model(str(path))
            known = self._probabilities([""])[0]
        except (ValueError, RuntimeError, MemoryError, OverflowError) as error:
            raise InputError(f"fastText can't read {path} ({error}): copy the file again.") from error
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

"""Which classifier a file holds."""

from __future__ import annotations

from pathlib import Path

from webtext_prep.errors import InputError
from webtext_prep.text.classifiers import fasttext, linear

FILE = "model.filter"
"""What `webtext train-filter` writes into its output."""

PLAIN_CHARACTERS = 12 << 20
"""Texts of this many characters in all are done before machine code would be loaded."""
COMPILER_BYTES = 250 << 20
"""Memory of a process that has loaded compiled functions."""

Classifier = linear.LinearModel | fasttext.FastTextModel


def classifier_file(given: str) -> Path:
    """The file of a classifier, given itself or as the output of `webtext train-filter`.

    Raises InputError for one that is not there, or holds none.
    """
    path = Path(given)
    path = path / FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            start = file.read(len(linear.MAGIC))
    except OSError as error:
        raise InputError(
            f"can't read {path} ({error.strerror}): give --model the output of `webtext train-filter`, or a file of "
            "fastText's."
        ) from error
    if start != linear.MAGIC and not start.startswith(fasttext.MAGIC):
        raise InputError(f"{path} is no classifier: give --model what `webtext train-filter` or fastText wrote.")
    return path


def is_fasttext(path: Path) -> bool:
    """Whether a file of a classifier is one of fastText's."""
    with path.open("rb") as file:
        return file.read(len(fasttext.MAGIC)) == fasttext.MAGIC


def read_classifier(path: Path, label: str = "") -> Classifier:
    """The classifier in a file, where `label` names good documents in one of fastText's. Raises InputError."""
    if is_fasttext(path):
        return fasttext.FastTextModel(path, label)
    return linear.LinearModel.decode(path.read_bytes(), path)

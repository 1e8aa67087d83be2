"""Documents whose texts lie in one piece, as compiled functions take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from webtext_prep.documents.document import Document


class PackedTexts(NamedTuple):
    """Texts as compiled functions take them.

    Attributes:
        data: their UTF-8, one after another, of lone surrogates, too.
        ends: of each in it, shape (texts,).
        lengths: in characters.
    """

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> PackedTexts:
        """These texts."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
        return cls.of_encoded(encoded, np.fromiter(map(len, texts), np.int64, len(texts)))

    @classmethod
    def of_encoded(cls, encoded: Sequence[bytes], lengths: npt.NDArray[np.int64]) -> PackedTexts:
        """The same of texts in UTF-8, of which the lengths in characters are known."""
        ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends, lengths)


class PackedDocuments(NamedTuple):
    """Some documents of a file, their texts by themselves.

    Attributes:
        documents: of which only the URL and the metadata may be there.
        texts: theirs.
        may_be_copied: whether each is there as a line that `encode_document` makes of it, with nothing else between.
    """

    documents: list[Document]
    texts: PackedTexts
    may_be_copied: bool

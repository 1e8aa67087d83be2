"""The task `hellaswag`: which of four endings does the model find the most likely? (Zellers et al. 2019)

Texts are prepared as in EleutherAI's lm-evaluation-harness, so that its figures compare.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar

from gpt2_train.evaluation.tasks.multiple_choice import MultipleChoice, Question

_BRACKETS = re.compile(r"\[.*?\]")


def prepared(text: str) -> str:
    """A text without the marks of the page that it came from.

    >>> prepared(" How to bake [title] Step [step] 1.")
    'How to bake. Step 1.'
    """
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


@dataclasses.dataclass(frozen=True)
class Hellaswag(MultipleChoice):
    """Endings chosen, of JSON lines with `ctx_a`, `ctx_b` (or `ctx`), `activity_label`, `endings` and `label`."""

    name: ClassVar[str] = "hellaswag"
    summary: ClassVar[str] = "the most likely of four endings"
    keys: ClassVar[dict[str, type]] = {"endings": list}

    def question(self, row: dict[str, Any]) -> Question:
        """See `MultipleChoice`."""
        begin = f"{row['ctx_a']} {row['ctx_b'].capitalize()}" if "ctx_a" in row else row["ctx"]
        head = f"{row['activity_label']}: " if row.get("activity_label") else ""
        endings = [prepared(str(ending)) for ending in row["endings"]]
        return Question(prepared(f"{head}{begin}"), endings, int(row["label"]))

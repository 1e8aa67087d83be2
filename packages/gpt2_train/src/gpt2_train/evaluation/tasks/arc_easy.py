"""The task `arc-easy`: questions of school tests in science, with three to five answers each (Clark et al. 2018).

Texts are prepared as in EleutherAI's lm-evaluation-harness, so that its figures compare. Of both files in which the
questions are published each line is read: that of Hugging Face, and AI2's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from gpt2_train.evaluation.tasks.multiple_choice import MultipleChoice, Question


@dataclasses.dataclass(frozen=True)
class ArcEasy(MultipleChoice):
    """Answers chosen, of JSON lines with `question`, `choices` (each with `text` and `label`) and `answerKey`."""

    name: ClassVar[str] = "arc-easy"
    summary: ClassVar[str] = "the most likely of several answers"
    keys: ClassVar[dict[str, type]] = {"answerKey": str}

    def question(self, row: dict[str, Any]) -> Question:
        """See `MultipleChoice`. Also of `question` with `stem` and `choices` in it, as AI2 has it."""
        asked: Any = row["question"]
        choices: Any = row.get("choices")
        if isinstance(asked, dict):
            asked, choices = asked["stem"], asked["choices"]
        if isinstance(choices, dict):
            texts, labels = choices["text"], choices["label"]
        else:
            texts, labels = ([choice[name] for choice in choices] for name in ("text", "label"))
        return Question(f"Question: {asked}\nAnswer:", [str(text) for text in texts], labels.index(row["answerKey"]))

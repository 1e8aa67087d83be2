"""The task `hellaswag`: which of four endings does the model find the most likely? (Zellers et al. 2019)

By the sum of log-probabilities, and by the sum divided by the ending's length in characters, which does not favour
short endings. Texts are prepared as in EleutherAI's lm-evaluation-harness, so that its figures compare.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks import Task, input_setting, read_rows

if TYPE_CHECKING:
    from gpt2_train.inference.model import InferenceModel
    from gpt2_train.inference.scorer import Scorer


_BRACKETS = re.compile(r"\[.*?\]")


def prepared(text: str) -> str:
    """A text without the marks of the page that it came from.

    >>> prepared(" How to bake [title] Step [step] 1.")
    'How to bake. Step 1.'
    """
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


class Question(NamedTuple):
    """A beginning with its possible endings.

    Attributes:
        pairs: (token ids of the beginning, of an ending), for each ending.
        lengths: of the endings, in characters.
        label: the number of the right one.
    """

    pairs: list[tuple[list[int], list[int]]]
    lengths: list[int]
    label: int


@dataclasses.dataclass(frozen=True)
class Hellaswag(Task):
    """Endings chosen, of JSON lines with `ctx_a`, `ctx_b` (or `ctx`), `activity_label`, `endings` and `label`."""

    name: ClassVar[str] = "hellaswag"
    summary: ClassVar[str] = "the most likely of four endings"

    input: str = input_setting()

    def read(self, model: InferenceModel) -> list[Question]:
        """The questions. Raises Gpt2UsageError for a line that holds none."""
        encode = model.required_tokenizer.encode
        found = []
        for number, row in enumerate(read_rows(self.input, self.name, {"endings": list}), 1):
            context, endings, label = self._question(row, number)
            encoded = encode(context)
            pairs = [(encoded, encode(f" {ending}")) for ending in endings]
            found.append(Question(pairs, [len(ending) for ending in endings], label))
        return found

    def measure(self, scorer: Scorer, found: list[Question]) -> dict[str, Any]:
        """Choose an ending for each beginning."""
        pairs = [pair for question in found for pair in question.pairs]
        with scorer.progress(self.name, "endings", len(pairs)) as progress:
            scores = iter([continuation.total for continuation in scorer.logprobs_of(pairs, progress.advance)])
        right = right_by_length = 0
        for question in found:
            totals = [next(scores) for _ in question.lengths]
            by_length = [total / length for total, length in zip(totals, question.lengths, strict=True)]
            right += totals.index(max(totals)) == question.label
            right_by_length += by_length.index(max(by_length)) == question.label
        return {
            "input": self.input,
            "questions": len(found),
            "accuracy": right / len(found),
            "length_normalised_accuracy": right_by_length / len(found),
        }

    def _question(self, row: dict[str, Any], number: int) -> tuple[str, list[str], int]:
        where = f"{self.input}: question {number:,}"
        try:
            endings = [prepared(str(ending)) for ending in row["endings"]]
            label = int(row["label"])
            begin = f"{row['ctx_a']} {row['ctx_b'].capitalize()}" if "ctx_a" in row else row["ctx"]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Gpt2UsageError(f"{where} can't be read ({type(error).__name__}: {error}).") from error
        if not (0 <= label < len(endings)) or not all(endings):
            raise Gpt2UsageError(f"{where} has no ending of its label {label}, or an empty one.")
        head = f"{row['activity_label']}: " if row.get("activity_label") else ""
        return prepared(f"{head}{begin}"), endings, label

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Both accuracies."""
        return [
            f"hellaswag on {result['input']}: {result['questions']:,} questions",
            f"  accuracy                     {result['accuracy']:.2%}",
            f"  accuracy, length-normalised  {result['length_normalised_accuracy']:.2%}",
        ]

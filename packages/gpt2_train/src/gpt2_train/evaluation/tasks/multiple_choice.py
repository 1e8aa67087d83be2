"""The common part of tasks that ask which of several answers is the most likely one."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from command_kit import setting
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.evaluation.tasks import Task, read_rows

if TYPE_CHECKING:
    from gpt2_train.inference.model import InferenceModel
    from gpt2_train.inference.scorer import Scorer


class Question(NamedTuple):
    """A text with its possible answers.

    Attributes:
        text: what comes before the answer.
        answers: one of them follows, after a space.
        right: the number of the right one.
    """

    text: str
    answers: list[str]
    right: int


class Encoded(NamedTuple):
    """A question as a model is asked it.

    Attributes:
        pairs: (token ids of the text, of an answer), for each answer.
        lengths: of the answers, in characters.
        right: the number of the right one.
        bytes: of that one as it is scored, with its space, in UTF-8.
    """

    pairs: list[tuple[list[int], list[int]]]
    lengths: list[int]
    right: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Task):
    """Answers chosen, by the sum of log-probabilities, and by the sum divided by the answer's length in characters,
    which does not favour short answers.

    The third figure has no steps: bits per byte of the right answer, the mean over questions. It says more of small
    models and small differences than accuracy does (Heineman et al. 2025, "Signal and Noise", arXiv 2508.13144).
    """

    keys: ClassVar[dict[str, type]]
    """The keys that each row must have, and their types."""

    input: str = setting("", "questions, as JSON lines", metavar="FILE", positional=True)

    @abc.abstractmethod
    def question(self, row: dict[str, Any]) -> Question:
        """The question of a row. May raise KeyError, TypeError, ValueError and AttributeError where it can't."""

    def read(self, model: InferenceModel) -> list[Encoded]:
        """The questions. Raises Gpt2UsageError for a line that holds none."""
        encode = model.required_tokenizer.encode
        found = []
        for number, row in enumerate(read_rows(self.input, self.name, self.keys), 1):
            text, answers, right = self._checked(row, number)
            encoded = encode(text)
            pairs = [(encoded, encode(f" {answer}")) for answer in answers]
            size = len(f" {answers[right]}".encode("utf-8", "surrogatepass"))
            found.append(Encoded(pairs, [len(answer) for answer in answers], right, size))
        return found

    def _checked(self, row: dict[str, Any], number: int) -> Question:
        where = f"{self.input}: question {number:,}"
        try:
            found = self.question(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Gpt2UsageError(f"{where} can't be read ({type(error).__name__}: {error}).") from error
        if not (0 <= found.right < len(found.answers)) or not all(found.answers):
            raise Gpt2UsageError(f"{where} has no answer of its label {found.right}, or an empty one.")
        return found

    def measure(self, scorer: Scorer, found: list[Encoded]) -> dict[str, Any]:
        """Choose an answer to each question."""
        pairs = [pair for question in found for pair in question.pairs]
        with scorer.progress(self.name, "answers", len(pairs)) as progress:
            scores = iter([continuation.total for continuation in scorer.logprobs_of(pairs, progress.advance)])
        chosen = chosen_by_length = 0
        bits = []
        for question in found:
            totals = [next(scores) for _ in question.lengths]
            by_length = [total / length for total, length in zip(totals, question.lengths, strict=True)]
            chosen += totals.index(max(totals)) == question.right
            chosen_by_length += by_length.index(max(by_length)) == question.right
            bits.append(-totals[question.right] / math.log(2) / question.bytes)
        return {
            "input": self.input,
            "questions": len(found),
            "accuracy": chosen / len(found),
            "length_normalised_accuracy": chosen_by_length / len(found),
            "right_answer_bits_per_byte": math.fsum(bits) / len(bits),
        }

    def describe(self, result: dict[str, Any]) -> list[str]:
        """Both accuracies, and the bits."""
        return [
            f"{self.name} on {result['input']}: {result['questions']:,} questions",
            f"  accuracy                     {result['accuracy']:.2%}",
            f"  accuracy, length-normalised  {result['length_normalised_accuracy']:.2%}",
            f"  bits per byte, right answer  {result['right_answer_bits_per_byte']:.4f}",
        ]

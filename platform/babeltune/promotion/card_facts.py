"""The facts of a model card besides scores: other models' dev scores, the dimension, and three sentences with what the
model finds nearest to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from babeltune.errors import BabeltuneError
from babeltune.models.hub import dimension_of
from babeltune.promotion.candidate import dev_texts

if TYPE_CHECKING:
    from babeltune.data.prepared import TextTask
    from babeltune.promotion.candidate import Candidate
    from babeltune.promotion.fresh_scorer import FreshScorer
    from babeltune.promotion.gates import Scores

SHOWN = 3  # sentences with their nearest neighbours in a card
AMONG = 500  # sentences among which the nearest one is looked for: to encode a whole dev set again would take long
MOST_CHARACTERS = 120  # characters of a sentence in a card; longer ones are passed over if a shorter one follows


@dataclass(frozen=True, kw_only=True)
class Question:
    """A sentence, and those in another language among which its translation is."""

    text: str
    language: str
    candidates: tuple[str, ...]
    candidate_language: str
    translation: int  # the place of its translation among the candidates


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The sentence that the model finds nearest to that of a question, for the examples of its card."""

    question: Question
    text: str
    cosine: float
    is_translation: bool


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Facts for a model's card besides its scores: what it is compared with, its width, and examples."""

    others: Mapping[str, Scores] = field(default_factory=dict)
    """Dev scores of the untrained student, the teacher and the sweep's baselines."""
    dimension: int | None = None
    nearest: tuple[Nearest, ...] = ()
    canary: str | None = None  # the SHA-256 of the file of canary vectors in the model's folder


def facts_of(candidate: Candidate, model: Path, scorer: FreshScorer) -> CardFacts:
    """The facts of an exported candidate. Sentences are left out if the sweep's texts are gone, or none fit."""
    others, dimension = candidate.folder.baselines(), dimension_of(model)
    try:
        sentences = questions(dev_texts(candidate.prepared))
        answers = scorer.nearest(str(model), sentences) if sentences else []
    except (BabeltuneError, OSError, ValueError):  # a promotion does not fail for the examples of its card
        return CardFacts(others=others, dimension=dimension)
    nearest = list[Nearest]()
    for question, (place, cosine) in zip(sentences, answers, strict=True):
        answer, right = question.candidates[place], question.candidates[question.translation]
        nearest.append(Nearest(question=question, text=answer, cosine=cosine, is_translation=answer == right))
    return CardFacts(others=others, dimension=dimension, nearest=tuple(nearest))


def questions(tasks: Sequence[TextTask]) -> list[Question]:
    """A question for each of `SHOWN` places that are spread evenly over the dev sets' bitexts, whatever their scores.

    Sealed tests are none of these: a card must not show their text."""
    fit = [task for task in tasks if task.kind == "bitext" and task.right_model == "student" and task.left]
    chosen = [fit[place * len(fit) // SHOWN] for place in range(SHOWN)] if fit else []
    return [_question(task, (place + 1) / (SHOWN + 1)) for place, task in enumerate(chosen)]


def _question(task: TextTask, part: float) -> Question:
    among = min(AMONG, len(task.left))
    start = int(part * among)
    short = (row for row in range(start, among) if max(len(task.left[row]), len(task.right[row])) <= MOST_CHARACTERS)
    row = next(short, start)
    left, _, right = task.subset.partition("-")
    return Question(
        text=task.left[row],
        language=task.left_languages[0] or left,
        candidates=tuple(task.right[:among]),
        candidate_language=task.right_languages[0] or right,
        translation=row,
    )

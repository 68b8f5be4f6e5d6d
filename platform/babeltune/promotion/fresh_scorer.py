"""Scores model folders with plain sentence-transformers, in a process of its own.

Promotion trusts no number that this process does not reproduce: it shares no state with training, and knows a model
only by its exported folder."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np
import torch

from babeltune.data.prepared import TextTask, tasks_from
from babeltune.data.teacher import load_teacher
from babeltune.errors import PromotionError, TeacherError
from babeltune.evaluation.evaluate import embedded_texts, evaluate_texts, score_vectors
from babeltune.evaluation.projection import cosines
from babeltune.files import plain
from babeltune.memory import uncollected
from babeltune.models.hub import open_model, routes_of
from babeltune.promotion.compare import Outcomes, outcomes
from babeltune.promotion.readers import reader_of
from babeltune.schema.base import from_plain
from babeltune.schema.languages import match
from babeltune.schema.records import Teacher
from babeltune.stages import EVALUATING, listening, tell

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from babeltune.evaluation.evaluate import EncodeTexts
    from babeltune.promotion.card_facts import Question

BATCH = 64  # texts that a model encodes at once
TELL_EVERY_S = 0.5  # seconds between two lines that say how far the process is
EXIT_TIMEOUT_S = 30.0  # seconds for the process to end once it has closed its output, before it is killed
NAMES = {"untrained": "the untrained student", "first": "A", "second": "B"}
"""The words for the key of a model, if not the key itself."""
Scores = dict[str, float]
Target = Teacher | str
"""The model of the right sides of tasks with `right_model: teacher`: a sweep's teacher, or a model's folder."""


class FreshScorer:
    """The process, from `with` to the end of its block: it loads its libraries at once, and then answers requests."""

    def __enter__(self) -> Self:
        self._words: IO[str] = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "babeltune.promotion.fresh_scorer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()
        self._words.close()

    def scored(
        self,
        models: dict[str, str],
        tasks: Sequence[TextTask],
        prefix: str,
        prompt: str | None = None,
        target: Target | None = None,
        *,
        remembered: bool = False,
    ) -> dict[str, tuple[Scores, Outcomes]]:
        """The metrics of each model (name -> folder or hub id) on the tasks, and what every item came out as.

        `prompt` is put before every sentence; without it, the model's own one is. `target` encodes the right sides of
        tasks with `right_model: teacher`. With `remembered`, models that the same question named before are not scored
        again. Raises `PromotionError` with the process's last words when it fails."""
        request = {"models": models, "prefix": prefix, "prompt": prompt, "target": plain(target)}
        request["remembered"] = remembered
        answer = self._answer({**request, **_numbered(tasks)})
        return {name: (scores, items) for name, (scores, items) in answer.items()}

    def of_teacher(self, teacher: Teacher, tasks: Sequence[TextTask], prefix: str) -> Scores:
        """The metrics of the raw teacher on the tasks. Raises `TeacherError` if it cannot be had now."""
        request = {"teacher": plain(teacher), "prefix": prefix, "remembered": True}
        answer = self._answer({**request, **_numbered(tasks)})
        if "missing" in answer:
            raise TeacherError(str(answer["missing"]))
        scores: Scores = answer["scores"]
        return scores

    def check_widths(self, models: dict[str, str], target: Target, words: dict[str, str]) -> None:
        """Raises `TeacherError`, with the model's name in `words`, if vectors do not compare with the target's."""
        widths = self._answer({"widths": models, "target": plain(target)})
        target_width = widths.pop("", 0)
        for name, width in widths.items():
            if width != target_width:
                other = words[""] if isinstance(target, str) else f"the teacher {target.title!r}"
                both = f"vectors of {width} dimensions, and {other}, which encodes the right side, of {target_width}"
                raise TeacherError(f"{words[name]} has {both}: they do not compare; name two models of one dimension")

    def nearest(self, model: str, questions: Sequence[Question]) -> list[tuple[int, float]]:
        """For each question, the place of the candidate that the model finds nearest to its sentence, and its cosine.

        Raises `PromotionError` as `scored` does."""
        neighbours = self._answer({"model": model, "questions": plain(list(questions)), "target": None})["nearest"]
        return [(int(place), float(cosine)) for place, cosine in neighbours]

    def vectors(self, model: str, texts: list[str]) -> NDArray[np.float32]:
        """The model's vectors [texts, dim]; one with layers for each language takes its first. Raises as `scored`."""
        return np.array(self._answer({"model": model, "encode": texts, "target": None})["vectors"], np.float32)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            while (answer := self._process.stdout.readline()).startswith("["):
                tell(*json.loads(answer))
        except BrokenPipeError:
            answer = ""
        if not answer:
            try:
                code = self._process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait(EXIT_TIMEOUT_S)
            self._words.seek(0)
            words = self._words.read().strip().splitlines()[-1:] or [f"exit code {code}"]
            reason = re.sub(r"^[\w.]*(Error|Exception): ", "", words[0])
            raise PromotionError(f"the model could not be scored with sentence-transformers: {reason}")
        values: dict[str, Any] = json.loads(answer)
        return values


def _numbered(tasks: Sequence[TextTask]) -> dict[str, object]:
    """The tasks with a number in place of each text, and the texts, each once: subsets may share them."""
    texts: dict[str, int] = {}
    numbered = [task.mapped(lambda text, _: texts.setdefault(text, len(texts))) for task in tasks]
    return {"texts": list(texts), "tasks": plain(numbered)}


def score(model: str, tasks: Sequence[TextTask], prefix: str, prompt: str | None = None) -> Scores:
    """The metrics of a sentence-transformers model that is a folder or a hub id; `TeacherError` when it is neither."""
    return score_items(model, tasks, prefix, prompt)[0]


def score_items(
    model: str,
    tasks: Sequence[TextTask],
    prefix: str,
    prompt: str | None = None,
    target: EncodeTexts | None = None,
    stage: str = EVALUATING,
) -> tuple[Scores, Outcomes]:
    """`score`, and what every item came out as, from the same vectors. `stage` is what the listener hears."""
    numbered, lookup = embedded_texts(tasks, encoder_of(model, prompt, stage), target)
    return score_vectors(numbered, lookup, prefix), outcomes(numbered, lookup, prefix)


def target_encoder(target: Target) -> EncodeTexts:
    """The model of right sides: a sweep's teacher as its record says, or a model folder by its own settings.

    Models that are scored on the same text get the same vectors, encoded once."""
    if isinstance(target, str):
        encode = encoder_of(target, stage="encoding the right sides")
    else:
        teacher = load_teacher(target, "cuda" if torch.cuda.is_available() else "cpu")

        def encode(texts: list[str], languages: list[str]) -> NDArray[np.float32]:
            return teacher.encode(texts)

    once = lru_cache(maxsize=1)(lambda texts, languages: encode(list(texts), list(languages)))
    return lambda texts, languages: once(tuple(texts), tuple(languages))


def encoder_of(model: str, prompt: str | None = None, stage: str | None = None) -> EncodeTexts:
    """How a sentence-transformers model encodes texts, or a folder of `export`; `TeacherError` if it is neither.

    `stage` names the progress that is reported batch by batch. None reports nothing, which suits a few texts."""
    reader = reader_of(Path(model))
    if reader is not None:
        reader.prompt = reader.prompt if prompt is None else prompt
        return lambda texts, languages: reader.encode(texts)
    loaded = open_model(model)
    routes = routes_of(Path(model))

    def encode(texts: list[str], languages: list[str]) -> NDArray[np.float32]:
        """The vectors of the texts. A model with layers for each language gets the language if it has layers for it."""
        route_of = {language: match(language, routes) for language in dict.fromkeys(languages)}
        tasks = [route_of[language] for language in languages]
        rows: dict[int, NDArray[np.float32]] = {}
        with nullcontext() if stage is None else _counted_batches(loaded, stage, len(texts)):
            for task in set(tasks):
                chosen = [row for row, other in enumerate(tasks) if other == task]
                route = {"task": task} if task else {}  # an LSTM's tokenizer takes no further word
                vectors = loaded.encode(
                    [texts[row] for row in chosen], prompt=prompt, batch_size=BATCH, show_progress_bar=False, **route
                )
                rows |= zip(chosen, vectors, strict=True)
        return np.stack([rows[row] for row in range(len(texts))])

    return encode


@contextmanager
def _counted_batches(model: SentenceTransformer, stage: str, texts: int) -> Iterator[None]:
    """Tells after each batch how many of the texts are encoded."""
    # Texts stay in one call: their order and padding, and so their vectors' last digits, depend on all of them.
    batches = itertools.count(1)
    tell(stage, 0, texts)
    hook = model[0].register_forward_hook(lambda *_: tell(stage, min(texts, next(batches) * BATCH), texts))
    try:
        yield
    finally:
        hook.remove()


def width_of(encode: EncodeTexts) -> int:
    """The dimensions of the vectors. Nobody hears of the one text that is encoded for them."""
    with listening(lambda *_: None):
        return int(encode(["dimension"], [""]).shape[1])


def nearest_of(model: str, questions: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    """The place and cosine of the candidate that is nearest to each question's sentence."""
    encode = encoder_of(model)
    neighbours: list[tuple[int, float]] = []
    for each in questions:
        candidates = list(each["candidates"])
        languages = [each["language"], *[each["candidate_language"]] * len(candidates)]
        vectors = encode([each["text"], *candidates], languages)
        scores = cosines(vectors[:1], vectors[1:])[0]
        neighbours.append((int(scores.argmax()), float(scores.max())))
    return neighbours


def _stage(model: str, prefix: str) -> str:
    """The progress words while the model with this key is scored."""
    return f"{EVALUATING} {NAMES.get(model, f'the {model}')} on the {'dev sets' if prefix == 'dev' else 'sealed tests'}"


def main() -> None:
    """Answers requests, a line of JSON each, until nobody can ask any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    requests: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        """Hands requests on, and ends this process, whatever it does, once whoever asks is gone."""
        for line in sys.stdin:
            requests.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    with uncollected():
        importlib.import_module("sentence_transformers")  # before the first request comes

    def write(line: object) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    last: list[float] = [0.0]

    def progress(name: str, done: int, of: int) -> None:
        """A list is no answer yet; an answer is an object."""
        if done in (0, of) or time.monotonic() - last[0] > TELL_EVERY_S:
            last[0] = time.monotonic()
            write([name, done, of])

    with listening(progress):
        while True:
            write(answered(requests.get()))


def answered(request: str) -> dict[str, Any]:
    """The answer to one request: scores and items of each model, or scores of a teacher. Other requests ask for the
    dimensions of each model and of the target (`""`), for vectors, or for what is nearest to sentences."""
    message = json.loads(request)
    if message.get("remembered"):
        return remembered_scores(request)
    if "teacher" in message:
        tell(_stage("teacher", message["prefix"]))
        try:
            encode = target_encoder(from_plain(Teacher, message["teacher"]))
            return {"scores": evaluate_texts(_tasks_of(message), encode, message["prefix"], teacher=encode)}
        except TeacherError as error:
            return {"missing": str(error)}
    teacher = message["target"]
    teacher = from_plain(Teacher, teacher) if isinstance(teacher, dict) else teacher
    target = None if teacher is None else target_encoder(teacher)
    if "widths" in message:
        widths = {name: width_of(encoder_of(model)) for name, model in message["widths"].items()}
        return widths | {"": width_of(target)} if target else widths
    if "encode" in message:
        vectors = encoder_of(message["model"])(message["encode"], [""] * len(message["encode"]))
        return {"vectors": vectors.tolist()}
    if "questions" in message:
        return {"nearest": nearest_of(message["model"], message["questions"])}
    tasks, prefix, prompt = _tasks_of(message), message["prefix"], message["prompt"]
    models = message["models"].items()
    return {name: score_items(model, tasks, prefix, prompt, target, _stage(name, prefix)) for name, model in models}


@lru_cache(maxsize=4)  # the rungs of a front are judged beside the same models and one teacher
def remembered_scores(request: str) -> dict[str, Any]:
    """The answer to a request for scores, made once."""
    return answered(json.dumps(json.loads(request) | {"remembered": False}))


def _tasks_of(request: dict[str, Any]) -> list[TextTask]:
    return [task.mapped(lambda number, _: request["texts"][number]) for task in tasks_from(request["tasks"])]


if __name__ == "__main__":
    main()

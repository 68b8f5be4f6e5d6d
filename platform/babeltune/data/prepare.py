"""Prepares a sweep once: corpus, tokens, teacher vectors and mined negatives, as stores that all trials share.

Everything is content-addressed, so a second sweep over the same text and teacher finds its stores ready."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from babeltune.data.alignment import build_words
from babeltune.data.arrays import first_places, histogram, is_first, number_type, numbers, rows_where, scratch_in, zeros
from babeltune.data.contamination import find_near_once
from babeltune.data.corpus import Corpus, build_corpus, check_corpus
from babeltune.data.negatives import mine_negatives
from babeltune.data.pair_scores import RULES, write_scores
from babeltune.data.prepared import TEXTS, Counts, Prepared, sides_of, with_files, write_ids
from babeltune.data.shards import RunShards, run_here
from babeltune.data.store import Contents, build, digest_of_array, digest_of_texts, facts_of, key_of
from babeltune.data.stored_arrays import open_matrix
from babeltune.data.student_tokens import StudentTokens, ids_among
from babeltune.data.teacher import build_teacher_store
from babeltune.data.text_shards import TextShards
from babeltune.data.texts import Texts, text_hashes
from babeltune.data.thresholds import MARGIN
from babeltune.data.translation import Translator
from babeltune.files import plain
from babeltune.schema.records import Student, Sweep
from babeltune.stages import Progress, no_progress

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Requirements:
    """The needs of all methods that a sweep can propose, together."""

    sides: frozenset[str]
    negatives: tuple[tuple[str, int, float], ...]  # key, number per pair, and the teacher cosine that they stay below
    frozen: bool = False  # whether a method's encoder is the teacher: then it encodes every text
    exact: bool = False
    """Whether its vectors are kept in fp32: so that promotion finds the scores of frozen encoders and of tasks with
    `right_model: teacher` again."""
    trained: bool = True  # whether a method trains a student, which reads tokens
    words: bool = False  # word-positioned samples
    scores: tuple[str, ...] = ()  # the thresholds by which trials leave pairs out

    @property
    def both_sides(self) -> bool:
        """Whether the teacher encodes both texts of a pair, whatever the methods read."""
        return self.frozen or MARGIN in self.scores


@dataclass(frozen=True)
class PreparationInputs:
    """Inputs of a sweep's preparation besides its file. `planning.preparation` finds it."""

    sweep: Sweep
    root: Path  # relative paths of the sweep's data start here
    requirements: Requirements
    students: tuple[Student, ...]  # every student whose text is tokenized on its own


def read_corpus(
    inputs: PreparationInputs, storage: Path, progress: Progress = no_progress, run_shards: RunShards | None = None
) -> Corpus:
    """The sweep's clean corpus; `DataError` for text that is broken or missing.

    `run_shards` shares the work on many texts; without it, all is done in this process. What a model has to translate
    is translated here, once for all sweeps of this storage."""
    sweep = inputs.sweep
    translate = Translator(storage / "stores", sweep.seed, progress)
    near = functools.partial(find_near_once, storage / "stores")
    shards = TextShards(run_shards, storage / "stores") if run_shards else None
    with scratch_in(storage / "stores"):
        corpus = build_corpus(sweep.data, inputs.root, sweep.seed, translate, near, progress=progress, shards=shards)
    check_corpus(corpus)
    return corpus


def prepare(
    inputs: PreparationInputs,
    storage: Path,
    *,
    corpus: Corpus | None = None,
    run_shards: RunShards = run_here,
    progress: Progress = no_progress,
) -> Prepared:
    """Builds or finds everything that the sweep's trials read; `corpus` is what `read_corpus` gave, if it was read.

    Raises `DataError` for broken text, `TeacherError` for a teacher that cannot be loaded, `StoreError` when the
    storage fails."""
    sweep, needs, stores = inputs.sweep, inputs.requirements, storage / "stores"
    stores.mkdir(parents=True, exist_ok=True)
    corpus = corpus or read_corpus(inputs, storage, progress)
    text_digest = digest_of_texts(itertools.chain(corpus.texts, corpus.languages))
    words = align_words(inputs, corpus, stores, progress) if needs.words else None
    student_tokens = StudentTokens(sweep, inputs.students, corpus, text_digest, stores, run_shards, progress)
    tokens = student_tokens.build(words) if needs.trained else {}
    teacher, teacher_rows = encode_with_teacher(inputs, corpus, stores, run_shards, progress)
    tokens = student_tokens.with_vectors(tokens, teacher, teacher_rows)
    languages = tuple(dict.fromkeys(itertools.chain(*corpus.group_languages, corpus.languages.names())))
    description = prepared_record(inputs, corpus, text_digest, teacher, teacher_rows, words)
    write = functools.partial(write_prepared, inputs, corpus, teacher, teacher_rows, languages, progress)
    folder, aligned = build(stores, "prepared", description, write), facts_of(words) if words else {}
    shares = corpus.contamination.plain()
    return Prepared(
        folder=str(folder),
        digest=key_of(description),
        languages=languages,
        text_digest=text_digest,
        tokens=tokens,
        teacher=str(teacher),
        teacher_dim=int(facts_of(teacher)["dim"] or 0),
        copy_anchor=sweep.teacher.target_side == "copy_anchor",
        negatives={key: str(folder / f"negatives-{key}.npy") for key, _, _ in needs.negatives},
        counts=dict(Counts(rows=corpus.counts, overlap=corpus.overlap, words=aligned, contamination=shares)),
        texts=len(corpus.texts),
        groups=corpus.groups,
        group_rows=tuple(histogram(corpus.pair_groups, len(corpus.groups)).tolist()),
        group_languages=corpus.group_languages,
        tasks=with_files(corpus.tasks, folder),
        digests=corpus.digests,
    )


def write_prepared(
    inputs: PreparationInputs,
    corpus: Corpus,
    teacher: Path,
    teacher_rows: NDArray[np.integer],
    languages: tuple[str, ...],
    progress: Progress,
    folder: Path,
) -> Contents:
    """The arrays, texts, mined negatives and scores that a `Prepared` names."""

    def vectors_of(ids: NDArray[np.integer]) -> NDArray[np.generic]:
        return open_matrix(teacher).rows(teacher_rows[ids])

    write_arrays(folder, corpus, teacher_rows, languages)
    if minings := inputs.requirements.negatives:
        anchors = vectors_of(corpus.pairs[:, 0])
    for number, (key, k, below) in enumerate(minings):
        progress("mining hard negatives", number, len(minings))
        mined = mine_negatives(anchors, corpus.pairs, corpus.pair_groups, k=k, below=below, seed=inputs.sweep.seed)
        np.save(folder / f"negatives-{key}.npy", mined)
    write_scores(folder, inputs.requirements.scores, corpus, vectors_of, functools.partial(progress, "scoring pairs"))
    return Contents()


def encode_with_teacher(
    inputs: PreparationInputs, corpus: Corpus, stores: Path, run_shards: RunShards, progress: Progress
) -> tuple[Path, NDArray[np.integer]]:
    """The store of the teacher's vectors, and [texts] each text's row in it (-1: not asked)."""
    teacher, needs = inputs.sweep.teacher, inputs.requirements
    sentences, rows = asked_of_teacher(corpus, needs, copy_anchor=teacher.target_side == "copy_anchor")
    tell = functools.partial(progress, "encoding with the teacher")
    return build_teacher_store(
        stores, sentences, teacher, exact=needs.exact, run_shards=run_shards, progress=tell
    ), rows


def align_words(inputs: PreparationInputs, corpus: Corpus, stores: Path, progress: Progress) -> Path:
    """The store of the corpus's word-positioned samples."""
    data, seed = inputs.sweep.data, inputs.sweep.seed
    progress("aligning words", 0, 1)
    words = build_words(corpus, data.words, inputs.root, stores, seed, longest=data.max_line_bytes)
    progress("aligning words", 1, 1)
    return words


def prepared_record(
    inputs: PreparationInputs,
    corpus: Corpus,
    text_digest: str,
    teacher: Path,
    teacher_rows: NDArray[np.integer],
    words: Path | None,
) -> dict[str, object]:
    """All that a `Prepared` depends on."""
    needs = inputs.requirements
    record: dict[str, object] = {
        "data": corpus.digests,
        "texts": text_digest,
        "arrays": [digest_of_array(a) for a in (corpus.pairs, corpus.pair_groups, corpus.weights, teacher_rows)],
        "tasks": key_of({"tasks": plain(corpus.tasks)}),
        "teacher_settings": plain(inputs.sweep.teacher),
        "teacher": teacher.name,
        "negatives": plain(needs.negatives),
    }
    if words:
        record["words"] = words.name
    if needs.scores:
        record["scores"] = [needs.scores, RULES]
    if corpus.graded:
        record["graded"] = key_of({"graded": plain(corpus.graded)})
    return record


def write_arrays(folder: Path, corpus: Corpus, teacher_rows: NDArray[np.integer], languages: tuple[str, ...]) -> None:
    """The arrays and texts that a `Prepared` names."""
    np.save(folder / "pairs.npy", corpus.pairs)
    np.save(folder / "groups.npy", corpus.pair_groups)
    np.save(folder / "weights.npy", corpus.weights)
    np.save(folder / "teacher_rows.npy", teacher_rows)
    np.save(folder / "languages.npy", corpus.languages.codes(languages))
    corpus.texts.save(folder / TEXTS)
    write_ids(folder, list(sides_of(corpus.tasks)))
    if corpus.graded:
        sets = [
            np.column_stack([np.full(len(task.left), number), task.left, task.right])
            for number, task in enumerate(corpus.graded)
        ]
        np.save(folder / "graded.npy", np.concatenate(sets))
        np.save(folder / "grades.npy", np.concatenate([task.scores for task in corpus.graded]))


def asked_of_teacher(corpus: Corpus, needs: Requirements, *, copy_anchor: bool) -> tuple[Texts, NDArray[np.integer]]:
    """The distinct sentences that the teacher encodes, and [texts] each text's place among them (-1: not asked).

    Asked are the sides that the methods read, both for a frozen encoder or margins, and all dev texts. These give the
    raw teacher's row of the leaderboard, and the right sides of tasks with `right_model: teacher`. Equal sentences of
    two languages are asked once."""
    evals = np.array([i for task in corpus.tasks for i in task.texts()], np.int64)
    some: list[NDArray[np.integer]] = [evals]
    if needs.both_sides or "source" in needs.sides or (copy_anchor and "target" in needs.sides):
        some.append(corpus.pairs[:, 0])
    if needs.both_sides or ("target" in needs.sides and not copy_anchor):
        some.append(corpus.pairs[:, 1])
    ids = ids_among(len(corpus.texts), *some)
    first = first_places(text_hashes(corpus.texts.at(ids)))
    new = is_first(first)
    rows = zeros(len(corpus.texts), number_type(len(corpus.texts)))
    rows[:] = -1
    rows[ids] = numbers(first, new)
    return corpus.texts.at(rows_where(ids, new)), rows

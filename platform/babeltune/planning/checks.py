"""Checks a sweep against the methods that it can propose, and those methods' needs against the teacher and the data.

`method_problems` runs all stages: names, values, models, needs, goals. The stage of needs is here. Pure but for reading
a model's configuration file: a sweep goes in, `(key, problem)` pairs come out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from babeltune.errors import MethodError
from babeltune.method import Method, Needs
from babeltune.planning.availability import model_width, teacher_width
from babeltune.planning.goals import goal_problems
from babeltune.planning.languages import languages, taught_languages, taught_pairs
from babeltune.planning.model_checks import model_files, right_models, unused_student
from babeltune.planning.name_checks import name_problems
from babeltune.planning.parameters import of_method, values_of
from babeltune.planning.rules import RANGES, kind_of, setting_key
from babeltune.planning.space import config_for, configurations, possible_needs, preparations
from babeltune.planning.value_checks import blamed, student_with, value_problems
from babeltune.schema.bounds import Key, Problem
from babeltune.schema.document import describe
from babeltune.schema.languages import code_of, known_by
from babeltune.schema.records import Scalar, Student, Sweep


def method_problems(sweep: Sweep) -> Iterator[Problem]:
    """Everything that the proposable methods, the teacher and the dev tasks have against the sweep.

    Later checks build on earlier ones, so the first stage that finds something is the last."""
    for stage in (name_problems, value_problems, _agreements, right_models, _needs, goal_problems):
        at_stage = list(stage(sweep))
        yield from at_stage
        if at_stage:
            return


def _agreements(sweep: Sweep) -> Iterator[Problem]:
    """Configurations that ask for what nobody can prepare, such as two combined methods that need different orders."""
    for params, method, config in configurations(sweep):
        try:
            method.needs(config)
        except MethodError as error:
            key = blamed(params, "parameters", str(error))
            yield key if len(key) > 1 else blamed(sweep.fixed, "config", str(error)), str(error)


def _needs(sweep: Sweep) -> Iterator[Problem]:
    yield from _needs_of_ranges(sweep)
    yield from model_files(sweep)
    if any(needs.words for _, _, needs in possible_needs(sweep)):
        yield from _lexicons(sweep)
    taught_width = teacher_width(sweep.teacher)
    anchors, others = taught_languages(sweep)
    if all(needs.frozen for _, _, needs in possible_needs(sweep)):
        yield from unused_student(sweep)
    names = ("kind", "preset", "width", "layers", "projection", "model")
    settings = list(configurations(sweep, [f"student.{name}" for name in names]))
    by_method: dict[str, set[Needs]] = {}
    for _, method, config in settings:
        by_method.setdefault(method.name, set()).add(method.needs(config))
    for params, method, config in settings:
        needs = method.needs(config)
        student = student_with(sweep, params)
        chosen, all_needs = _chosen(sweep, params), by_method[method.name]
        # its settings are named only where another choice of them needs something else
        who = f"method {method.name!r}{chosen if len(all_needs) > 1 else ''}"
        reads = ("states", "frozen", "per_language", "fixed_width", "translations")
        readings = {tuple(getattr(one, name) for name in reads) for one in all_needs}
        alone = f"method {method.name!r}" if len(readings) == 1 else who
        yield from _without_translations(sweep, needs, alone)
        if needs.states and student.kind == "static":
            words = "reads token states, and a static student has none; choose another method, or a Transformer"
            yield setting_key(sweep, "student.kind"), f"'static': {alone} {words}"
        elif needs.layer > student.layers and student.model is None:
            words = f"method {method.name!r} reads layer {needs.layer}; name a layer that the student has"
            yield setting_key(sweep, "student.layers"), f"{student.layers}: {words}"
        yield from _teacher_languages(sweep, needs, who, anchors, others)
        if sweep.training.matryoshka:
            follows = student.projection == "teacher" and not needs.frozen
            width = None if needs.frozen else student_width(student)
            yield from matryoshka_problems(sweep.training.matryoshka, needs, alone, taught_width if follows else width)
        for problem in _widths(sweep, student, method, config, chosen, taught_width):
            yield ("student", "projection"), f"{describe(student.projection)}: {problem}"


def _widths(
    sweep: Sweep, student: Student, method: type[Method], config: object, chosen: str, taught_width: int | None
) -> Iterator[str]:
    """Vectors that are not as wide as the teacher's, with which they are compared."""
    needs = method.needs(config)
    width = None if needs.frozen else student_width(student)
    besides = " and another student.pooling" if student.pooling == "pooler" else ""
    if needs.same_dimension and width is not None and taught_width is not None and width != taught_width:
        vectors = f"compares the student's vectors ({width} wide) with the teacher's ({taught_width})"
        yield f"method {method.name!r} {vectors}; write `student.projection: teacher`{besides}"
    elif tasks := (*sweep.data.against_teacher("dev"), *sweep.data.against_teacher("test")):
        width = exported_width(method, config, width, taught_width)
        if None not in (width, taught_width) and width != taught_width:
            vectors = f"the vectors of method {method.name!r}{chosen} are {width} wide, the teacher's {taught_width}"
            todo = f"make them {taught_width} wide (`student.projection: teacher`{besides}), or remove right_model"
            yield f"task {tasks[0]!r} has `right_model: teacher`, and {vectors}; {todo}"


def matryoshka_problems(dims: Sequence[int], needs: Needs, who: str, width: int | None) -> Iterator[Problem]:
    """Why vectors of this width cannot be trained at these dimensions with a method of these needs."""
    key: Key = ("training", "matryoshka")
    why = {
        "trains layers on a frozen encoder, whose vectors stay as they are": needs.frozen or needs.per_language,
        "reads token states, and no sentence vector is cut there": needs.states,
        "has a layer that takes the student's whole vectors": needs.fixed_width,
    }
    for reason in [reason for reason, holds in why.items() if holds][:1]:
        yield key, f"{list(dims)}: {who} {reason}; remove training.matryoshka, or choose another method"
    if width is not None and max(dims) > width:
        todo = f"name dimensions up to {width}, or make the student wider (student.projection, student.width)"
        yield key, f"{list(dims)}: {max(dims)} is above the {width} numbers of the student's vectors; {todo}"


def exported_width(
    method: type[Method], config: object, student_dim: int | None, teacher_dim: int | None
) -> int | None:
    """The width of the exported model's vectors, behind the layers that its method keeps. None if it follows the
    teacher's or is not known yet."""
    needs = method.needs(config)
    if method.layers is Method.layers:
        return student_dim if not needs.frozen else teacher_dim
    before = teacher_dim if needs.frozen or student_dim is None else student_dim
    if before is None:
        return None
    sizes: dict[str, Any] = {"student_dim": before, "teacher_dim": teacher_dim or before}
    sizes |= {"languages": ("",)} if needs.per_language else {}
    sizes |= {"width": 1, "vocabulary": 1} if needs.states else {}
    with torch.random.fork_rng(devices=[]):
        layers = method(config, **sizes).layers()
    linear = [module for layer in layers.values() for module in layer if isinstance(module, torch.nn.Linear)]
    return linear[-1].out_features if linear else student_dim


def _lexicons(sweep: Sweep) -> Iterator[Problem]:
    """Language pairs that no lexicon lists, if words come from lexicons alone."""
    words = sweep.data.words
    bare = [
        f"{a}-{b}"
        for a, b in taught_pairs(sweep)
        if words.align == "lexicon" and not any({a, b} <= set(languages(lexicon, {})) for lexicon in words.lexicon)
    ]
    if bare:
        words_of = f"no lexicon has columns of {', '.join(bare)}; add one, or align words with `align: mutual`"
        yield ("data", "words", "lexicon"), words_of


def _needs_of_ranges(sweep: Sweep) -> Iterator[Problem]:
    """Ranges over settings that decide what is prepared once for all trials."""
    for params, method, config in configurations(sweep):
        for name in params:
            kind = kind_of(sweep.parameters[name])
            for end in (0, 1) if of_method(name) and kind in RANGES else ():
                value = values_of(sweep.parameters[name], end)[0]
                other = config_for(sweep, method, {**params, name: value})
                if method.needs(other).prepared != method.needs(config).prepared:
                    words = f"decides what method {method.name!r} needs prepared before the first trial"
                    yield ("parameters", name, kind), f"{words}; give a choice or a const"


def _teacher_languages(
    sweep: Sweep, needs: Needs, who: str, anchors: tuple[str, ...], others: tuple[str, ...]
) -> Iterator[Problem]:
    """Whether the teacher knows the text that it is asked to encode."""
    languages_of_teacher = sweep.teacher.common_languages
    spelled = (f"{code} (write {written})" if (written := code_of(code)) else code for code in languages_of_teacher)
    says = f"the teacher {sweep.teacher.title!r} knows {', '.join(spelled)}"
    key, multilingual = ("teacher", "languages"), "name a multilingual teacher and list its languages"
    strange = [language for language in anchors if not known_by(language, languages_of_teacher)]
    if strange and ("source" in needs.teacher or needs.hard_negatives):
        why = f"{who} needs its vectors of the anchor side, which is in {', '.join(strange)} too"
        todo = "put a language that it knows first in data.anchor_priority, leave out the pairs without one"
        yield key, f"{says}, and {why}; {todo}, or {multilingual}"
    strange = [language for language in (*anchors, *others) if not known_by(language, languages_of_teacher)]
    listed, margin = ", ".join(dict.fromkeys(strange)), "data.sampling.least_margin"
    if strange and any(student.token_vectors == "teacher_tokens" for student in preparations(sweep)):
        words = f"'teacher_tokens': {says}, and not tokens of {listed}; {multilingual}"
        yield setting_key(sweep, "student.token_vectors"), f"{words}, or begin with `token_vectors: teacher`"
    if strange and (margin in sweep.parameters or sweep.data.sampling.least_margin):
        words = f"{says}, so margins of pairs with {listed} mean nothing; {multilingual}"
        yield setting_key(sweep, margin), f"{words}, or leave the threshold out"
    strange = [language for language in others if not known_by(language, languages_of_teacher)]
    if strange and "target" in needs.teacher and sweep.teacher.target_side == "encode":
        why = f"{who} needs its vectors of {', '.join(strange)} too"
        example = "for example a student distilled beforehand with mse_distillation"
        copied = "let the target side copy the anchor's vectors with `teacher.target_side: copy_anchor`"
        yield (
            key,
            f"{says}, so it can teach only that side, and {why}; either {multilingual} ({example}), or {copied}",
        )


def _without_translations(sweep: Sweep, needs: Needs, who: str) -> Iterator[Problem]:
    """Text of one language alone, for a method that needs translations, or in batches with them."""
    alone = [index for index, source in enumerate(sweep.data.train) if source.train and len(languages(source, {})) == 1]
    if not alone:
        return
    key, name = ("data", "train", alone[0]), sweep.data.train[alone[0]].name
    if needs.translations:
        words = "leave it out, or add a term that reads the teacher's vectors (lealla's beta, mse_distillation, …)"
        yield key, f"source {name!r} holds one language alone, and {who} needs translations; {words}"
    searched = sweep.parameters.get("data.sampling.batches")
    if "mixed" in (sweep.data.sampling.batches, *(values_of(searched, 0) if searched else ())):
        words = f"'mixed': source {name!r} holds one language alone, and such text has batches of its own; set one_pair"
        yield ("data", "sampling", "batches"), words


def _chosen(sweep: Sweep, params: Mapping[str, Scalar]) -> str:
    """The fixed and chosen settings of a configuration, in words."""
    chosen = ({"config": "paper"} if sweep.config == "paper" else sweep.fixed) | {
        name: value
        for name, value in params.items()
        if of_method(name) and kind_of(sweep.parameters[name]) not in RANGES
    }
    return f" with {', '.join(f'{name} {value}' for name, value in chosen.items())}" if chosen else ""


def student_width(student: Student) -> int | None:
    """The width of the student's vectors. None if it follows the teacher's or is not known yet."""
    if student.projection is not None:
        return student.projection if isinstance(student.projection, int) else None
    return student.width if student.model is None else model_width(student.model, student.revision)

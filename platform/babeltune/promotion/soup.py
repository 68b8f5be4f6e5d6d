"""The average of several trials' checkpoints: Wortsman et al. 2022, "Model soups", their uniform soup.

Trained from one start, models lie in one valley of the loss, and the mean of their weights may be better than each.
The dev sets say whether it is: if it is not, the best single checkpoint is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from babeltune.errors import PromotionError, SpecError
from babeltune.method.distributed import ProcessGroup
from babeltune.promotion.candidate import Candidate, find_candidate
from babeltune.schema.trial_names import TRIAL
from babeltune.sweep.state.folder import SweepFolder
from babeltune.sweep.state.leaderboard import leaderboard
from babeltune.training.build import load_weights, make_student_and_method
from babeltune.training.checkpoint import checkpoint_folder, load_checkpoint
from babeltune.training.dev_evaluation import dev_scores

INSTEAD = "promote without --soup"


def members_of(folder: SweepFolder, count: int) -> list[Candidate]:
    """The best `count` finished trials, the best first.

    Raises `SpecError` for fewer than two or more than there are, and `PromotionError` for trials that share no start.
    """
    rows = [row for row in leaderboard(folder) if row.state == "finished" and row.best and TRIAL.fullmatch(row.name)]
    if not 2 <= count <= len(rows):
        has = f"sweep {folder.id} has {len(rows)} finished ones"
        todo = INSTEAD if len(rows) < 2 else "ask for 2" if len(rows) == 2 else f"ask for 2 to {len(rows)}"
        raise SpecError(f"--soup {count}: an average needs at least 2 trials, and {has}; {todo}")
    members = [find_candidate(f"{folder.id}/{row.name}", folder.path.parents[1]) for row in rows[:count]]
    for member in members[1:]:
        _refuse_unlike(members[0], member, count)
    _refuse_other_starts(members)
    return members


def _refuse_other_starts(members: Sequence[Candidate]) -> None:
    """Raises `PromotionError` for two trials that began with other weights, such as those of another seed."""
    first, *others = members
    began = _first_weights(first)
    for other in others:
        differ = [name for name, tensor in _first_weights(other).items() if not torch.equal(tensor, began[name])]
        if differ:
            both = " and ".join(f"{each.name} (seed {each.trial.seed})" for each in (first, other))
            why = f"began with other weights ({differ[0]}), and only checkpoints that share a start are averaged"
            raise PromotionError(f"--soup {len(members)}: {both} {why}; name one with student.seed, or {INSTEAD}")


def _first_weights(member: Candidate) -> dict[str, Tensor]:
    """The weights with which a trial began, of the student and of the method's layers."""
    encoder, method = make_student_and_method(member.trial, member.prepared)
    layers = {f"method.{name}": tensor for name, tensor in method.state_dict().items()}
    return {f"student.{name}": tensor for name, tensor in encoder.state_dict().items()} | layers


def _refuse_unlike(first: Candidate, other: Candidate, count: int) -> None:
    """Raises `PromotionError` for two trials whose weights do not mean the same."""
    who = f"--soup {count}: "
    one, two = first.trial.student, other.trial.student
    for name in [field.name for field in fields(one) if field.name != "dropout"]:
        value, its = getattr(one, name), getattr(two, name)
        if value != its:
            both = f"student.{name} is {value!r} in {first.name} and {its!r} in {other.name}"
            why = "only checkpoints that share a start, a tokenizer and a shape are averaged"
            raise PromotionError(f"{who}{both}, and {why}; ask for fewer, or {INSTEAD}")
    if first.prepared.digest != other.prepared.digest:
        raise PromotionError(f"{who}{first.name} and {other.name} were trained on other data; ask for fewer")


def averaged(members: Sequence[Candidate]) -> dict[str, dict[str, Tensor]]:
    """The mean of the members' checkpoints; what is no floating-point number is the best one's.

    Raises `PromotionError` if they hold other tensors."""
    loaded = [load_checkpoint(checkpoint_folder(m.folder.trial(m.trial.number), m.report.index))[0] for m in members]
    parts = {"student": _mean([tensors["student"] for tensors in loaded], members)}
    if len({member.trial.method for member in members}) == 1 and "method" in loaded[0]:
        parts["method"] = _mean([tensors["method"] for tensors in loaded], members)
    return parts


def _mean(states: Sequence[Mapping[str, Tensor]], members: Sequence[Candidate]) -> dict[str, Tensor]:
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    for member, shape in zip(members, shapes, strict=True):
        if shape != shapes[0]:
            why = f"the tensors of {member.name} are of other shapes than those of {members[0].name}"
            raise PromotionError(f"--soup {len(members)}: {why}; ask for fewer, or {INSTEAD}")
    return mean_of(states)


def mean_of(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of tensors of the same shapes; what is no floating-point number is the first one's."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }


def best_or_average(members: Sequence[Candidate]) -> tuple[Candidate, str]:
    """The average if the dev sets say that it is better than the best member, else that member; and why.

    Raises `PromotionError` if the members keep layers of different methods."""
    best = members[0]
    trial, prepared, objective = best.trial, best.prepared, best.chosen_by
    tensors = averaged(members)
    encoder, method = make_student_and_method(trial, prepared)
    if method.layers() and "method" not in tensors:
        raise PromotionError(f"--soup {len(members)}: the trials are of several methods, whose layers are not alike")
    load_weights(encoder, method, tensors)
    scores = dev_scores(encoder, method, trial, prepared, ProcessGroup(), torch.device("cpu"))
    score, single = scores[objective.metric], best.report.metrics[objective.metric]
    better = score > single if objective.goal == "maximize" else score < single
    names = ", ".join(member.name for member in members)
    compared = f"{objective.metric} is {score:.4f}, and {single:.4f} of {best.name} alone"
    if not better:
        return best, f"the average of {names} is not taken: its {compared}"
    report = replace(best.report, metrics={**best.report.metrics, **scores})
    chosen = tuple(f"{member.name}/{member.report.index}" for member in members)
    average = replace(best, report=report, weights=tensors, members=chosen)
    return average, f"the average of {names} is taken: its {compared}"

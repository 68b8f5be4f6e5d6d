"""Soft contrastive alignment.

Park et al. 2024, "Improving Multi-lingual Alignment Through Soft Contrastive Learning", NAACL Student Research
Workshop; the authors' code is YAI12xLinq-B/IMASCL. A frozen teacher says how alike the anchor sentences of a batch are.
The student's similarities across the two languages are pulled to that distribution instead of to 0 and 1. The same is
asked of the similarities within each language (TCM).

    N           pairs in the global batch; n of them on this rank
    s, t        [n | N, dim]   unit vectors of the source (anchor) and target sentences, f(s_i) and f(t_i)
    g           [n, teacher]   frozen teacher's vectors
    tau         temperature    sim_f(a, b) = cos(f(a), f(b)) / tau, sim_g alike
    w           [n, N]         labels w(i, j); rows sum to one; never written out
    H(w, p)     -sum_j w_j log p_j"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, OwnShare, TeacherVectors, encode_sides
from babeltune.method.checks import above_zero, one_of
from babeltune.method.contrastive import Duplicates, check_negatives, everyone, negative_shares, tiled_cross_entropy
from babeltune.method.own_share import AUTO, check_auto, compared, label_shape, number
from babeltune.method.tiled_contrastive import Labels, soft_labels

if TYPE_CHECKING:
    from jaxtyping import Float

FLAT = 0.9  # labels with an entropy above this share of log N hardly say which sentences are alike
HARD = 0.1  # labels with an entropy below this share of log N are hard ones in all but name
OWN = 0.9  # labels that give a row's own pair more weight than this are hard ones in all but name, too


@dataclass(frozen=True)
class Config:
    """The paper's numbers, with every cross-entropy a proper one (`reading: fixed`)."""

    temperature: float | Literal["auto"] = 0.1
    """tau of the student's similarities (section 4.1: 0.1, tuned on English-Korean). `auto`: the one at which a student
    with its teacher's cosines gives each pair `own_share`."""
    teacher_temperature: float | Literal["auto"] | None = None
    """tau of the labels. Absent: the student's, as section 3 and the authors' code have one tau for both. `auto`: the
    one at which a row's own pair has `own_share` of its labels, measured once on batches of the training text. With
    `labels: hard` it is the student's."""
    own_share: float = 0.5
    """Weight of a row's own pair, mean of a batch, that `auto` finds a temperature for. Ours: in the table
    `park_labels` 0.63 has the best FLORES of soft labels with TCM, and lower shares the better STS."""
    labels: Literal["priority", "average", "hard"] = "priority"
    """`priority`: the anchor side's similarities (equation 4). `average`: the mean of both sides' (equation 5), from a
    teacher that knows both. `hard`: 0 and 1 (equation 3)."""
    reading: Literal["paper", "authors_code", "fixed"] = "fixed"
    """Which side to take if the equations and the authors' code differ. `paper`: the columns of equation 2 and the
    monolingual terms of equation 6 take a softmax over i of labels that sum to one over j. `authors_code`: proper
    cross-entropies, the monolingual ones twice and no lambda; hard labels are softmax(identity / tau). `fixed` is
    ours: proper cross-entropies once, with lambda; with hard labels, repeats of a row's positive are no negatives."""
    tcm: bool = True
    """Adds the monolingual terms of both languages (equation 6)."""
    lambda_cross: float = 0.1
    """lambda of equation 7 (section 4.1: 0.1): the cross-lingual term's weight beside the monolingual ones. Alone,
    without `tcm`, it has none; nor in the `authors_code` reading."""

    def __post_init__(self) -> None:
        above_zero(self, "lambda_cross")
        check_auto(self, "temperature", "teacher_temperature", own_share=self.own_share)
        one_of(self, labels=("priority", "average", "hard"), reading=("paper", "authors_code", "fixed"))
        if self.temperature == AUTO and self.labels == "hard":
            raise ValueError("temperature is 'auto', and labels 'hard' have no teacher to fit it to; give a number")

    @property
    def tau(self) -> float:
        """The student's temperature."""
        return number(self.temperature)

    @property
    def label_tau(self) -> float:
        """The labels' temperature."""
        absent = self.teacher_temperature is None or (self.teacher_temperature == AUTO and self.labels == "hard")
        return self.tau if absent else number(self.teacher_temperature or 0)

    @classmethod
    def paper(cls) -> Config:
        """The literal paper: priority labels, TCM, lambda 0.1."""
        return cls(reading="paper")


@dataclass(frozen=True)
class Side:
    """One language's unit vectors, this rank's and everybody's."""

    local: Float[Tensor, "local dim"]
    everyone: Float[Tensor, "global dim"]
    repeats: Duplicates | None
    """Set if repeated texts are dropped from denominators."""


@dataclass(frozen=True)
class Weights:
    """w(i, j): soft labels, or hard ones; and how they are read."""

    tau: float
    """The student's."""
    soft: Labels | None
    smoothing: float = 0.0
    """The weight of a hard label for each other j: 0, but for the authors' softmax(identity / tau)."""
    as_printed: bool = False
    """Columns take w(i, j) as it is, and not transposed and renormalised."""


def anchors(config: Config, g_s: Tensor | None, g_t: Tensor | None) -> Float[Tensor, "local teacher"]:
    """Unit vectors whose cosines are the labels' similarities: g(s) for `priority`; for `average`, the mean of both."""
    if g_s is None or (config.labels == "average" and g_t is None):
        raise TrainingError(f"labels {config.labels!r} need teacher vectors that the batch does not have")
    sides = [g_s, g_t] if config.labels == "average" and g_t is not None else [g_s]
    return compared(sides)


def smoothing(tau: float, total: int) -> float:
    """softmax_j(identity / tau) off the diagonal: 1 / (e^(1/tau) + N - 1)."""
    return math.exp(-1 / tau - math.log1p((total - 1) * math.exp(-1 / tau)))


def rows(a: Side, b: Side, w: Weights) -> tuple[Tensor, Tensor]:
    """sum_i H(w(i, .), softmax_j sim_f(a_i, b_j)) over own i. Also sum_ij w(i, j) sim_g(i, j).

    With the sides exchanged it is the proper column term: w symmetric before its softmax gives w(j, i)."""
    value, label_similarity = tiled_cross_entropy(
        a.local, b.everyone, temperature=w.tau, labels=w.soft, label_rows=1.0, repeats=b.repeats
    )
    if w.soft is None:
        on_diagonal = (a.local * b.local).sum() * (1 - len(b.everyone) * w.smoothing)
        value = value - (on_diagonal + w.smoothing * (a.local @ b.everyone.sum(0)).sum()) / w.tau
    return value, label_similarity


def columns(a: Side, b: Side, w: Weights) -> Tensor:
    """-sum_ij w(i, j) log softmax_i sim_f(a_i, b_j) over own j, w transposed and renormalised unless as printed."""
    if w.soft is None or not w.as_printed:
        return rows(b, a, w)[0]
    return tiled_cross_entropy(
        b.local, a.everyone, temperature=w.tau, labels=w.soft, row_weights=w.soft.column_sums, label_columns=1.0
    )[0]


def cross(s: Side, t: Side, w: Weights) -> tuple[Tensor, Tensor]:
    """N · L_cross = N · (L_row + L_col). Also sum_ij w(i, j) sim_g(i, j)."""
    if w.soft is None or len(s.local) < len(s.everyone):
        row, label_similarity = rows(s, t, w)
        return row + columns(s, t, w), label_similarity
    ones = torch.ones_like(w.soft.own_log_z)  # one rank: one pass of tiles does for both directions
    both, label_similarity = tiled_cross_entropy(
        s.local,
        t.local,
        temperature=w.tau,
        labels=w.soft,
        row_weights=ones,
        column_weights=w.soft.column_sums if w.as_printed else ones,
        label_rows=2.0 if w.as_printed else 1.0,
        label_columns=0.0 if w.as_printed else 1.0,
    )
    return both, label_similarity / 2


def mono(s: Side, t: Side, w: Weights) -> Tensor:
    """N · L_mono of both languages; i = j is in the denominator and in w, as in the paper and the code."""
    return columns(s, s, w) + columns(t, t, w)


def least(w: Weights, label_similarity: Tensor, local: int, total: int, label_tau: float) -> tuple[Tensor, Tensor]:
    """The least that a row term can be, the entropy of the labels of own rows, and the least of a column term."""
    if w.soft is None:
        one = 1 - (total - 1) * w.smoothing
        entropy = local * ((1 - one) / label_tau - math.log(one))
        return (label_similarity.new_full((), entropy),) * 2
    rowwise = w.soft.own_log_z.sum() - label_similarity
    return rowwise, rowwise + torch.xlogy(w.soft.column_sums, w.soft.column_sums).sum() if w.as_printed else rowwise


class SoftContrastive(Method):
    name = "soft_contrastive"
    Config = Config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        if config.labels == "hard":
            return Needs(in_batch_negatives=True)
        if config.labels == "average":
            return Needs(teacher=frozenset({"source", "target"}), in_batch_negatives=True, translations=False)
        return Needs(teacher=frozenset({"source"}), in_batch_negatives=True, translations=False)

    @classmethod
    def warning(cls, means: Mapping[str, float]) -> str:
        """Labels that hardly prefer a pair teach nothing: their entropy is near that of equal shares, log N. Labels
        that give a row's own pair nearly everything teach no more than hard ones."""
        entropy, own_share = means.get("label_entropy", 0.0), means.get("label_own")
        if entropy > FLAT:
            return f"labels are nearly flat ({entropy:.0%} of log N): set teacher_temperature to auto, or lower it"
        if own_share is not None and (entropy < HARD or own_share > OWN):
            return (
                f"labels are nearly hard ({own_share:.0%} of their weight is on the own pair, {entropy:.0%} of log N): "
                "set teacher_temperature to auto, raise it, or set labels: hard"
            )
        return ""

    @classmethod
    def fits(cls, config: Any) -> Mapping[str, OwnShare]:
        if config.labels == "hard":
            return {}
        fit = OwnShare(config.own_share, ("source", "target") if config.labels == "average" else ("source",))
        return {name: fit for name in ("temperature", "teacher_temperature") if getattr(config, name) == AUTO}

    @classmethod
    def label_warning(cls, config: Any, vectors: TeacherVectors) -> str:
        """The same of one batch, from the teacher's vectors alone."""
        if config.labels == "hard":
            return ""
        g = anchors(config, *vectors())
        if len(g) < 2:
            return ""
        own_share, entropy = label_shape(g, config.label_tau)
        return cls.warning({"label_entropy": entropy, "label_own": own_share})

    def weights(self, batch: Batch, gather: Gather, label_tau: float) -> Weights:
        """w(i, j) of this configuration."""
        config: Config = self.config
        if config.labels == "hard":
            smooth = smoothing(label_tau, batch.total) if config.reading == "authors_code" else 0.0
            return Weights(config.tau, None, smooth)
        g = anchors(config, batch.teacher_source, batch.teacher_target)
        soft = soft_labels(g, gather, temperature=label_tau)
        return Weights(config.tau, soft, as_printed=config.reading == "paper")

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        """L = lambda · L_cross + L_mono, or L_cross alone."""
        config: Config = self.config
        total = batch.total
        check_negatives(total)
        label_tau = config.label_tau
        w = self.weights(batch, gather, label_tau)
        f_s, f_t = (normalize(side.float(), dim=1) for side in encode_sides(encode, batch))
        all_s, all_t, sources, targets = everyone(f_s, f_t, batch, gather)
        masked = config.labels == "hard" and config.reading == "fixed"
        s = Side(f_s, all_s, sources if masked else None)
        t = Side(f_t, all_t, targets if masked else None)

        loss, label_similarity = cross(s, t, w)
        terms = {"cross": loss.detach() / total}
        rowwise, columnwise = least(w, label_similarity, len(f_s), total, label_tau)
        floor = rowwise + columnwise
        if config.tcm:
            authors = config.reading == "authors_code"
            weight, times = (1.0, 2.0) if authors else (config.lambda_cross, 1.0)
            within = times * mono(s, t, w)
            loss, floor = weight * loss + within, weight * floor + times * 2 * columnwise
            terms["mono"] = within.detach() / total
        terms["kl"] = (loss.detach() - floor) / total
        diagnostics = {
            "label_entropy": rowwise / (total * math.log(total)),
            **negative_shares(
                sources.count() + targets.count(),
                2 * total,
                [side.others(masked).negatives() for side in (sources, targets)],
                [total - 1] * 2,
                gather,
            ),
            "cosine": (f_s * f_t).sum().detach() / total,
        }
        if w.soft is not None:
            diagnostics["label_own"] = (1 / label_tau - w.soft.own_log_z).exp().sum() / total
        return Loss(loss / total, terms, diagnostics)

"""Soft contrastive alignment.

Park et al. 2024, "Improving Multi-lingual Alignment Through Soft Contrastive Learning", NAACL Student Research
Workshop; the authors' code is YAI12xLinq-B/IMASCL. A frozen teacher says how alike the anchor sentences of a batch
are, and the student's similarities across the two languages are pulled to that distribution instead of to 0 and 1.
The same is asked of the similarities within each language (TCM).

    N           pairs in the global batch; n of them on this rank
    s, t        [n | N, dim]   unit vectors of the source (anchor) and target sentences, f(s_i) and f(t_i)
    g           [n, teacher]   frozen teacher's vectors
    tau         temperature    sim_f(a, b) = cos(f(a), f(b)) / tau, sim_g alike
    w           [n, N]         labels w(i, j); rows sum to one; never written out
    H(w, p)     -sum_j w_j log p_j
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, encode_together
from babeltune.soft_loss import Labels, Repeats, soft_labels, tiled_cross_entropy

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Config:
    """The paper's numbers, with every cross-entropy a proper one (`reading: fixed`)."""

    temperature: float = 0.1
    """tau of the student's similarities (section 4.1: 0.1)."""
    teacher_temperature: float | None = None
    """tau of the labels; absent: the student's, as in the paper and the code."""
    labels: Literal["priority", "average", "hard"] = "priority"
    """Section 3.2: the anchor side's similarities, the mean of both sides' (a teacher that knows both), or 0 and 1."""
    reading: Literal["paper", "authors_code", "fixed"] = "fixed"
    """Where the equations and the released code differ. `paper`: the column and monolingual terms take a softmax over
    i of labels that sum to one over j. `authors_code`: proper cross-entropies, the monolingual ones twice and no
    lambda; hard labels are softmax(identity / tau). `fixed`: proper cross-entropies once, with lambda; with hard
    labels, repeats of a row's positive are no negatives."""
    tcm: bool = True
    """Section 3.3: adds the monolingual terms of both languages."""
    lambda_cross: float = 0.1
    """Section 3.3, lambda: the cross-lingual term's weight beside the monolingual ones. Alone, without `tcm`, it has
    none; nor in the `authors_code` reading."""

    def __post_init__(self) -> None:
        for field in ("temperature", "teacher_temperature", "lambda_cross"):
            value = getattr(self, field)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{field} is {value}; it must be above 0")
        for field, allowed in (
            ("labels", ("priority", "average", "hard")),
            ("reading", ("paper", "authors_code", "fixed")),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field} is {getattr(self, field)!r}; allowed: {', '.join(allowed)}")

    @classmethod
    def paper(cls) -> Config:
        """The literal paper: priority labels, TCM, lambda 0.1."""
        return cls(reading="paper")


@dataclass(frozen=True)
class Side:
    """One language's unit vectors, this rank's and everybody's."""

    own: Float[Tensor, "local dim"]
    everyone: Float[Tensor, "global dim"]
    repeats: Repeats | None
    """Set where repeated texts are dropped from denominators."""


@dataclass(frozen=True)
class Weights:
    """w(i, j): soft labels, or one at i = j less a smoothing that spreads over all j."""

    soft: Labels | None
    smoothing: float = 0.0
    """What each j gets of a hard label: zero but for the authors' softmax(identity / tau)."""


def anchors(config: Config, g_s: Tensor, g_t: Tensor | None) -> Float[Tensor, "local teacher"]:
    """Unit vectors whose cosines are the labels' similarities: g(s) for `priority`; for `average`, the mean of both."""
    if config.labels == "average" and g_t is not None:
        return torch.cat([normalize(g_s, dim=1), normalize(g_t, dim=1)], dim=1) / math.sqrt(2)
    return normalize(g_s, dim=1)


def smoothing(tau: float, total: int) -> float:
    """softmax_j(identity / tau) off the diagonal: 1 / (e^(1/tau) + N - 1)."""
    return math.exp(-1 / tau - math.log1p((total - 1) * math.exp(-1 / tau)))


def hard_similarity(a: Side, b: Side, w: Weights, tau: float) -> Tensor:
    """sum_ij w(i, j) sim_f(a_i, b_j) of hard labels, smoothed or not."""
    total = len(b.everyone)
    on_diagonal = (a.own * b.own).sum() * (1 - total * w.smoothing)
    return (on_diagonal + w.smoothing * (a.own @ b.everyone.sum(0)).sum()) / tau


def rows(a: Side, b: Side, w: Weights, tau: float) -> tuple[Tensor, Tensor]:
    """sum_i H(w(i, .), softmax_j sim_f(a_i, b_j)) over own i. Also sum_ij w(i, j) sim_g(i, j).

    With the sides exchanged it is the proper column term, whose labels are transposed and renormalised: w(j, i).
    """
    value, label_similarity = tiled_cross_entropy(
        a.own, b.everyone, temperature=tau, labels=w.soft, label_rows=1.0, repeats=b.repeats
    )
    return (value, label_similarity) if w.soft else (value - hard_similarity(a, b, w, tau), label_similarity)


def columns_as_printed(a: Side, b: Side, w: Weights, tau: float) -> Tensor:
    """-sum_ij w(i, j) log softmax_i sim_f(a_i, b_j) over own j: the columns of w need not sum to one."""
    if w.soft is None:
        return rows(b, a, w, tau)[0]
    return tiled_cross_entropy(
        b.own, a.everyone, temperature=tau, labels=w.soft, row_weights=w.soft.column_sums(), label_columns=1.0
    )[0]


def cross(s: Side, t: Side, w: Weights, tau: float, *, as_printed: bool) -> tuple[Tensor, Tensor]:
    """N · L_cross = N · (L_row + L_col). Also sum_ij w(i, j) sim_g(i, j)."""
    if len(s.own) == len(s.everyone) and w.soft is not None:  # one pass of tiles does for both
        both, label_similarity = tiled_cross_entropy(
            s.own,
            t.own,
            temperature=tau,
            labels=w.soft,
            row_weights=torch.ones_like(w.soft.own_log_z),
            column_weights=w.soft.column_sums() if as_printed else torch.ones_like(w.soft.own_log_z),
            label_rows=2.0 if as_printed else 1.0,
            label_columns=0.0 if as_printed else 1.0,
        )
        return both, label_similarity / 2
    row, label_similarity = rows(s, t, w, tau)
    return row + (columns_as_printed(s, t, w, tau) if as_printed else rows(t, s, w, tau)[0]), label_similarity


def mono(x: Side, w: Weights, tau: float, *, as_printed: bool) -> Tensor:
    """N · L_mono of one language; i = j is in the denominator and in w, as in the paper and the code."""
    return columns_as_printed(x, x, w, tau) if as_printed else rows(x, x, w, tau)[0]


def floors(w: Weights, label_similarity: Tensor, own: int, total: int, tau: float, *, as_printed: bool) -> list[Tensor]:
    """What sum_i H(w(i, .), p) is at least: the labels' entropy, by rows; and the same of a column or `mono` term."""
    if w.soft is None:
        one = 1 - (total - 1) * w.smoothing
        spread = (total - 1) * w.smoothing * (1 / tau - math.log(one)) if w.smoothing else 0.0
        entropy = label_similarity.new_tensor(own * (spread - one * math.log(one)))
        return [entropy, entropy]
    entropy = w.soft.own_log_z.sum() - label_similarity
    if not as_printed:
        return [entropy, entropy]
    sums = w.soft.column_sums()
    return [entropy, entropy + (sums * sums.log()).sum()]


class SoftContrastive(Method):
    name = "soft_contrastive"
    Config = Config

    @classmethod
    def needs(cls, config: Any) -> Needs:
        sides: dict[str, Needs] = {
            "priority": Needs(teacher=frozenset({"source"}), in_batch_negatives=True),
            "average": Needs(teacher=frozenset({"source", "target"}), in_batch_negatives=True),
            "hard": Needs(in_batch_negatives=True),
        }
        return sides[config.labels]

    def weights(self, batch: Batch, gather: Gather) -> Weights:
        """w(i, j) of this configuration."""
        config = self.config
        tau = config.teacher_temperature or config.temperature
        if config.labels == "hard":
            return Weights(None, smoothing(tau, batch.total) if config.reading == "authors_code" else 0.0)
        if batch.teacher_source is None:
            raise TrainingError(f"labels {config.labels!r} need the teacher's vectors of the source side")
        g = anchors(config, batch.teacher_source.float(), batch.teacher_target)
        return Weights(soft_labels(g, gather, temperature=tau))

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        config: Config = self.config
        total, tau, as_printed = batch.total, config.temperature, config.reading == "paper"
        if total < 2:
            raise TrainingError(f"a global batch of {total} pair has no negatives; raise training.global_batch")
        w = self.weights(batch, gather)
        s, t = (normalize(side.float(), dim=1) for side in encode_together(encode, batch.source, batch.target))
        all_s, all_t = gather(torch.cat([s, t], dim=1)).chunk(2, dim=1)
        texts = gather(torch.stack([batch.source_ids, batch.target_ids], dim=1)).unbind(1)
        offset = gather.offset(len(s))
        masked = config.labels == "hard" and config.reading == "fixed"
        seen = [
            Repeats(ids, every, offset) for ids, every in zip((batch.source_ids, batch.target_ids), texts, strict=True)
        ]
        source = Side(s, all_s, seen[0] if masked else None)
        target = Side(t, all_t, seen[1] if masked else None)

        crossed, label_similarity = cross(source, target, w, tau, as_printed=as_printed)
        by_row, by_column = floors(
            w, label_similarity, len(s), total, config.teacher_temperature or tau, as_printed=as_printed
        )
        terms = {"cross": crossed / total}
        loss, floor = crossed / total, (by_row + by_column) / total
        if config.tcm:
            times = 2.0 if config.reading == "authors_code" else 1.0
            lambda_cross = 1.0 if config.reading == "authors_code" else config.lambda_cross
            alike = (
                times
                * (mono(source, w, tau, as_printed=as_printed) + mono(target, w, tau, as_printed=as_printed))
                / total
            )
            terms["mono"] = alike
            loss, floor = lambda_cross * loss + alike, lambda_cross * floor + times * 2 * by_column / total
        terms["kl"] = loss - floor
        diagnostics = {
            "label_entropy": by_row / (total * math.log(total)),
            "duplicates": (seen[0].count() + seen[1].count()) / (2 * total),
            "cosine": (s * t).sum() / total,
        }
        return Loss(loss, _detached(terms), _detached(diagnostics))


def _detached(values: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in values.items()}

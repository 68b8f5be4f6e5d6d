"""Multilingual representation distillation with contrastive learning (LASER3, LASER3-CO, LASER3-CO-Filter).

Tan, Heffernan, Schwenk and Koehn 2023, "Multilingual Representation Distillation with Contrastive Learning", EACL; no
code was released, the base is fairseq's LASER3. Stage one (`laser3`) pulls the student's vector of a sentence to the
frozen teacher's vector of its translation. Stage two (`co`) also pushes it away from a queue of the teacher's vectors
of earlier targets; `co_filter` leaves out entries that the teacher finds too close to the positive. It takes the text
sorted by length, so that the queue holds sentences of similar length. `in_batch` is the ablation without a queue.

The paper translates x into y, and its teacher knows y: here y is the source, that is the anchor side, of a pair.

    N           pairs in the global batch; n of them on this rank
    q           [n, dim]       unit vectors of the student, student(x_i)
    k           [n, dim]       unit vectors of the teacher, k+ = teacher(y_i)
    queue       [N_q, dim]     the teacher's unit vectors of earlier y
    S_i         the queue's entries that are negatives of row i: cos(k_i, entry) < sigma
    t           temperature"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from babeltune.errors import TrainingError
from babeltune.method import Batch, Encode, Gather, Loss, Method, Needs, OwnShare, encode_together
from babeltune.method.checks import at_least, one_of
from babeltune.method.contrastive import negative_shares, occurrences
from babeltune.method.masked_lm import MaskedLanguageHead
from babeltune.method.negative_queue import Filter, Queue, equal_m, log_sums
from babeltune.method.own_share import AUTO, SAME_TEXT, check_auto, number

if TYPE_CHECKING:
    from jaxtyping import Float

QUEUED = ("co", "co_filter")
MASKED = 0.15  # the share of tokens that fairseq masks
SPREAD = (10, 50, 90)
"""Percentiles of the average target similarity within a batch that are logged (section 5.2, figure 4)."""


@dataclass(frozen=True)
class Config:
    """The paper's numbers, Algorithm 1's denominator, and filtered entries left out exactly."""

    variant: Literal["laser3", "co", "co_filter", "in_batch"] = "co_filter"
    """`laser3`: distillation, stage one (section 3.2). `co`: contrast with a queue (section 2.1). `co_filter`: with the
    pre-filter too (section 2.2). `in_batch`: contrast within the batch (section 5.1, table 7)."""
    temperature: float | Literal["auto"] = 0.05
    """t of equation 1 (footnote 2: 0.05). `auto`: the one at which a student that equals its teacher gives each pair
    `own_share` among its negatives. Above it the loss still pulls at such a student; far below it, at few negatives."""
    own_share: float = 0.99
    """The own share for which `auto` finds a temperature, mean of a batch: ours. With all-MiniLM-L6-v2 it gives about
    0.09 in batches of 128."""
    queue: int = 4096
    """N_q, entries of the queue (footnote 1: 4096; section 5.1 tries 512 to 4096 and sees no difference)."""
    sigma: float = 0.9
    """An entry this close to the positive is no negative (section 2.2; footnote 4: 0.9). Section 5.3 and figure 4 try
    0.5, 0.7, 0.9 and 1; the peak is at 0.9."""
    equal_m: bool = False
    """Appendix A: every row keeps M = min_j |S_j| negatives, drawn at random. One row with few starves all rows, so
    absent: each row keeps all of its own."""
    denominator: Literal["alg1", "eq1"] = "alg1"
    """Algorithm 1 counts the positive in the denominator; equation 1, as printed, does not and is unbounded below."""
    self_weight: float = 1.0
    """LASER3's `self` task: y through the student to the teacher's y (fairseq: 1.0). Section 2.1 compares student(x)
    with teacher(y), so 0 is the paper's stage two; a student that is used alone needs both."""
    mask_weight: float = 0.0
    """LASER3's `mask` task: masked language modelling of x, with 15 % of the tokens chosen (fairseq: 0.09, of sums;
    see `distil`). The paper does not say whether it kept it, so it is off, a choice of ours."""
    mask_duplicates: bool = True
    """Candidates with the positive's own text are no negatives: ours. The paper does not say; `paper()` masks none."""

    def __post_init__(self) -> None:
        one_of(self, variant=("laser3", "co", "co_filter", "in_batch"), denominator=("alg1", "eq1"))
        check_auto(self, "temperature", own_share=self.own_share)
        if self.temperature == AUTO and self.equal_m:
            raise ValueError("temperature is 'auto', and equal_m draws the negatives anew each step; give a number")
        if not 1 <= self.queue <= 65_536:
            raise ValueError(f"queue is {self.queue}; it must be 1 to 65536 entries")
        if not -1 < self.sigma <= 1:
            raise ValueError(f"sigma is {self.sigma}; it is a cosine, above -1 and up to 1")
        at_least(self, 0, "self_weight", "mask_weight")

    @classmethod
    def paper(cls) -> Config:
        """Stage two as printed: LASER3-CO-Filter with equation 1, equal M, and the target language alone."""
        return cls(equal_m=True, denominator="eq1", self_weight=0.0, mask_duplicates=False)


def distil(q: Float[Tensor, "local dim"], k: Float[Tensor, "local dim"]) -> Float[Tensor, ""]:
    """sum_i 1 - cos(q_i, k_i), LASER3's loss.

    fairseq adds up sums: this one, and that of `mask` over its chosen tokens. Here each is a mean:
    this one over the pairs of the global batch, `mask` over its tokens. So `mask` weighs less beside it. fairseq's 0.09
    is a `mask_weight` of 0.09 times the tokens that are chosen per pair."""
    return (1 - (q * k).sum(1)).sum()


def quantile(ordered: Float[Tensor, "values"], percent: int) -> Float[Tensor, ""]:
    """The quantile of ordered values, between two of them by a line. torch's waits for the GPU."""
    place, part = divmod(percent * (len(ordered) - 1), 100)
    return torch.lerp(ordered[place], ordered[min(place + 1, len(ordered) - 1)], part / 100)


class Laser3Co(Method):
    name = "laser3_co"
    Config = Config

    def __init__(self, config: Any, *, student_dim: int, teacher_dim: int, **states: int) -> None:
        super().__init__(config, student_dim=student_dim, teacher_dim=teacher_dim, **states)
        self.queue = Queue(config.queue, teacher_dim) if config.variant in QUEUED else None
        self.head = MaskedLanguageHead(self.width, self.vocabulary) if config.mask_weight else None

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(
            teacher=frozenset({"source"}),
            same_dimension=True,
            translations=False,
            in_batch_negatives=config.variant == "in_batch",
            order="length" if config.variant == "co_filter" else "shuffled",
            warm_up=config.queue if config.variant in QUEUED else 0,
            states=config.mask_weight > 0,
            masked=MASKED if config.mask_weight else 0.0,
        )

    @classmethod
    def negatives(cls, config: Any, global_batch: int) -> int:
        return config.queue if config.variant in QUEUED else super().negatives(config, global_batch)

    @classmethod
    def fits(cls, config: Any) -> Mapping[str, OwnShare]:
        if config.temperature != AUTO or config.variant == "laser3":
            return {}
        below = SAME_TEXT if config.mask_duplicates else math.inf
        if config.variant == "co_filter":
            below = min(below, config.sigma)
        queue = config.queue if config.variant in QUEUED else 0
        return {"temperature": OwnShare(config.own_share, below=below, queue=queue)}

    def warm_up(self, vectors: Tensor, ids: Tensor) -> None:
        """Fills the queue, which holds nothing before the first batch: without negatives Algorithm 1's loss is 0."""
        if self.queue is not None:
            self.queue.push(normalize(vectors.float(), dim=1), ids)

    def loss(self, encode: Encode, batch: Batch, gather: Gather) -> Loss:
        config: Config = self.config
        if batch.teacher_source is None:
            raise TrainingError("laser3_co needs the teacher's vectors of the source side")
        both = config.self_weight > 0
        sides = (batch.target, batch.source) if both else (batch.target,)
        q, *others = (normalize(side.float(), dim=1) for side in encode_together(encode, *sides))
        k = normalize(batch.cut(batch.teacher_source.detach().float()), dim=1)
        if q.shape[1] != k.shape[1]:
            raise TrainingError(
                f"the student has {q.shape[1]} dimensions and the teacher {k.shape[1]}; set student.projection: teacher"
            )
        diagnostics = {"cosine": (q * k).sum().detach() / batch.total}
        if config.variant == "laser3":
            loss = distil(q, k) / batch.total
            terms = {"distil": loss.detach()}
        else:
            loss, more = self.contrast(q, k, batch, gather)
            terms, diagnostics = {"contrast": loss.detach()}, diagnostics | more
        if both:
            again = config.self_weight * distil(others[0], k) / batch.total
            loss, terms["self"] = loss + again, again.detach()
        if self.head is not None and batch.masked_target is not None:
            states = encode.states(batch.masked_target.tokens)
            guess, diagnostics["masked_accuracy"] = self.head.loss(states, batch.masked_target, encode, gather)
            loss, terms["mask"] = loss + config.mask_weight * guess, config.mask_weight * guess.detach()
        return Loss(loss, terms, diagnostics)

    def contrast(
        self, q: Float[Tensor, "local dim"], k: Float[Tensor, "local dim"], batch: Batch, gather: Gather
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
        """This rank's share of equation 1 (or Algorithm 1), and of what the filter did; then the queue takes all k."""
        config: Config = self.config
        everyone, ids = gather(k), gather(batch.source_ids.unsqueeze(1)).squeeze(1)
        excluded_ids = batch.source_ids
        if self.queue is not None:
            candidates, names = self.queue.candidates()
            if not batch.cut.whole:
                candidates = normalize(batch.cut(candidates), dim=1)
            if not len(candidates):
                raise TrainingError("there are no negatives: the queue is empty before its warm-up")
            if not config.mask_duplicates:
                excluded_ids = torch.full_like(excluded_ids, -1)
        else:
            candidates, names = everyone, ids
            if batch.total < 2:
                raise TrainingError("there are no negatives: raise training.global_batch above 1")
            if not config.mask_duplicates:  # a row leaves out its own place, and no other
                names = torch.arange(len(ids), device=ids.device)
                excluded_ids = names[gather.offset(len(k)) :][: len(k)]
        below = config.sigma if config.variant == "co_filter" else None
        negatives = Filter(k, excluded_ids, below)
        if config.equal_m:
            negatives = equal_m(negatives, candidates, names, batch.source_ids, gather)
        log_sum, counts, similarity = log_sums(q, candidates, names, negatives, temperature=number(config.temperature))
        positive = (q * k).sum(1) / number(config.temperature)
        if config.denominator == "alg1":
            rows = torch.logaddexp(positive, log_sum) - positive
        else:  # if S_i is empty there is nothing to push away
            rows = torch.where(counts > 0, log_sum - positive, 0 * positive)
        repeated = occurrences(batch.source_ids, ids if self.queue is None else names) > (self.queue is None)
        offered = len(candidates) - (self.queue is None)
        diagnostics = {
            "negatives": counts.sum() / batch.total,
            "filtered_rows": torch.sum(counts < offered) / batch.total,
            **negative_shares(repeated.sum(), batch.total, [counts], [offered], gather),
        }
        if self.queue is not None:
            # the mean over rows and entries of k_i . entry: the paper's average target similarity
            diagnostics["target_similarity"] = similarity / batch.total
            averages = (everyone @ candidates.mean(0)).float()  # of all rows, on each rank
            ordered = averages.sort().values
            diagnostics |= {f"target_similarity_p{share}": quantile(ordered, share) / gather.world for share in SPREAD}
            if batch.cut.whole:
                self.queue.push(everyone, ids)
        return rows.sum() / batch.total, diagnostics

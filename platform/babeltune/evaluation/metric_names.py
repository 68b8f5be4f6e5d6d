"""The names of metrics: what each kind of task is scored by, and what a model costs.

Those who show or check scores read it. It imports neither torch nor numpy.

`METRICS` says by the kind of task what can be an objective:

* bitext: `accuracy_forward` (left to right, mteb's direction: the other language to the anchor), `accuracy_backward`,
  and their mean `accuracy`. `f1` is mteb's main score, weighted over the predicted rows, forward. `xsim_error` is the
  mean of both directions, and over subsets the macro average. `xsim_error_forward` is LASER's own direction, left to
  right. `xsim_error_pooled` counts all errors over all rows of the task, which is LASER's average. `xsimpp_error`,
  forward, is there if changed sentences are among the candidates. `xsim_flipped` appears only if a ratio margin is
  not meaningful (neighbourhoods of non-positive mean cosine), with the share of candidates concerned. A set of
  each language with each has the mean of every language, `dev/<task>/rus/<metric>` (Park et al. 2024, table 9).
* bitext and mining with `right_model: teacher`: the same metrics under the same names. The left vectors are the
  student's and the right ones the teacher's.
* mining: F1 by each way to pair sentences, such as `f1_forward`. The threshold is the one that is best on the task's
  `fit`; with `_oracle`, the one that is best on the set itself.
* sts: `spearman` and `pearson` of the cosines with the grades.
* clustering: `ari` and `v_measure` of k-means and the labels, means over the seeds; `_sd`, their spread.
* transfer: `accuracy` and `macro_f1` of a linear head that has learnt the labels in one language.
* retrieval: `ndcg_at_10`, `mrr_at_10` and `recall_at_100` (or the task's `cutoff`), as trec_eval has them; and where
  documents are in several languages `same_language_bias` (see `retrieval.py`), which is best at 0 and no objective.

Vectors that are cut to their first numbers have the same metrics, `dim128/<prefix>/<task>/<metric>`."""

import math
from collections import Counter
from collections.abc import Mapping

RETRIEVALS = ("forward", "backward", "intersection", "union", "max")  # ways to choose candidates; `max` is one to one
Scores = dict[str, float]
MINING = tuple(f"f1_{how}" for how in RETRIEVALS)
ORACLE = tuple(f"{metric}_oracle" for metric in MINING)
METRICS: dict[str, tuple[str, ...]] = {
    "bitext": (
        "accuracy",
        "accuracy_forward",
        "accuracy_backward",
        "f1",
        "xsim_error",
        "xsim_error_forward",
        "xsimpp_error",
    ),
    "mining": (*MINING, *ORACLE),
    "sts": ("spearman", "pearson"),
    "clustering": ("ari", "v_measure"),
    "transfer": ("accuracy", "macro_f1"),
    "retrieval": ("ndcg_at_10", "mrr_at_10", "recall_at_k"),
}
"""Metrics of each subset, and averaged over the subsets of a task or group, each counting the same. `k` stands for a
number."""
MAIN_METRICS = frozenset(names[0] for names in METRICS.values())  # the main metric of each kind of task
POOLED = {"xsim_error": "xsim_error_pooled"}  # metrics that are also averaged over subsets by their rows
PARAMETERS, SPEED = "model/parameters", "model/sentences_per_second"
"""A model's size, without layers that only training has, and its speed. That is how many sentences of the sets one
thread, or one GPU, encodes in a second, token ids in. Students of one shape have one speed (`training/speed.py`)."""
SPREAD = f"{SPEED}_spread"
"""How far the measurements of a speed lie apart: their middle nine tenths, as a share of the speed."""
COMPUTE = "train/compute"
"""Counted seconds of one worker that a trial's training has cost, if it is as long as `training.compute` says."""
UNTRIMMED = "model/parameters_untrimmed"  # a model's size before `student.trim`
BIAS = "same_language_bias"
FACTS = ("ari_sd", "v_measure_sd", BIAS)  # averaged like `METRICS`, and no objective


def metrics_of(kind: str, k: int) -> tuple[str, ...]:
    """The `METRICS` of a kind of task, for a task with this `k`."""
    return tuple(f"recall_at_{k}" if metric == "recall_at_k" else metric for metric in METRICS[kind])


def each_with_each(pairs: Mapping[str, set[frozenset[str]]]) -> dict[str, list[str]]:
    """The languages of each set that has every two of three or more: a language has a mean over the others there.
    `pairs`: the language pairs of each bitext."""
    languages = {name: sorted(frozenset().union(*of_set)) for name, of_set in pairs.items()}
    return {
        name: codes
        for name, codes in languages.items()
        if len(codes) > 2 and len(pairs[name]) == math.comb(len(codes), 2)
    }


def each_once(scores: Mapping[str, float]) -> Scores:
    """The scores without the means over one subset: `dev/sts/spearman` repeats `dev/sts/eng/spearman` then."""
    parts = [name.split("/") for name in scores]
    subsets = Counter("/".join((*each[:2], each[3])) for each in parts if len(each) == 4)
    return {name: value for name, value in scores.items() if subsets[name] != 1}

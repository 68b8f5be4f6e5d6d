"""Where an order of a paper fails here: the reason that is suspected, and the experiment that looks for it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A suspicion that some failed orders of a table share."""

    table: str  # the table whose orders fail
    rows: tuple[str, ...]  # one of them is a row of each failed order
    suspected: str  # the reason, in a sentence that the experiment's orders confirm or refute
    experiment: str | None = None  # the table that looks for it; None if there is no experiment yet
    metrics: tuple[str, ...] = ()  # metrics of the experiment's orders that answer; all if it is empty

    def answered_by(self, better: str, worse: str, metric: str) -> bool:
        """Whether an order of the experiment's table is about this suspicion."""
        if self.metrics and metric not in self.metrics:
            return False
        return self.experiment != self.table or bool({better, worse} & set(self.rows))


AT_MSES_RATE = "MSE learns at a larger rate, which suits retrieval, and leaves a start whose STS is better."

TOO_SHORT = "Each training sees 20,000 pairs, about one epoch. The paper trains for 10 to 20 (section 4.1, footnote 2)."

LAMBDA = "Lambda gives TCM's term across languages a tenth of the weight, and here the training is short."

REASONS = (
    Reason(
        table="mao_terms",
        rows=("AMS + FD, beta 1000", "AMS + FD + LD, beta 1000"),
        suspected="The teacher's vectors are bad at ranking many candidates, and FD copies them.",
        experiment="mao_teacher",
    ),
    Reason(table="park_labels", rows=("MSE",), suspected=AT_MSES_RATE, experiment="park_mse"),
    Reason(
        table="park_labels",
        rows=("priority + TCM", "average + TCM", "priority + TCM, 0.1"),
        suspected=LAMBDA,
        experiment="park_tcm",
    ),
    Reason(
        table="park_labels",
        rows=("average",),
        suspected=TOO_SHORT,
        experiment="park_labels_longer",
        metrics=("test/sts_other/spearman",),
    ),
    Reason(
        table="park_teachers",
        rows=("aligned student, English", "fresh student, English"),
        suspected="The own teacher was distilled from the English one, which is better. The paper's are no such two.",
        experiment="park_strength",
    ),
    Reason(
        table="park_one_pair",
        rows=("en-fr, average",),
        suspected=TOO_SHORT,
        experiment="park_labels_longer",
        metrics=("test/sts_other/spearman",),
    ),
    Reason(
        table="park_one_pair",
        rows=("untrained",),
        suspected=TOO_SHORT,
        experiment="park_labels_longer",
        metrics=("test/sts_eng/spearman",),
    ),
    Reason(table="park_one_pair", rows=("en-fr, MSE", "en-ru, MSE"), suspected=AT_MSES_RATE, experiment="park_mse"),
    Reason(table="park_pairs", rows=("en-xx, priority + TCM",), suspected=LAMBDA, experiment="park_tcm"),
    Reason(
        table="park_pairs",
        rows=("all pairs", "all pairs, average"),
        suspected="Each row sees equally many pairs, so this one sees fewer with English. Tatoeba has pairs with "
        "English alone, and FLORES has all ten.",
        experiment="park_pairs",
        metrics=("test/flores/accuracy",),
    ),
    Reason(
        table="park_pairs",
        rows=("en-xx, fr-xx", "en-xx, ru-xx"),
        suspected="French and Russian have unequally many joined pairs, and from other texts.",
        experiment="park_pairs_alike",
    ),
    Reason(
        table="mao_shapes",
        rows=("1 × 320", "3 × 184"),
        suspected="After 4,600 pairs from scratch, layers have hardly begun to learn. A deep student is slower.",
        experiment="mao_shapes_longer",
    ),
    Reason(
        table="mao_dims",
        rows=("start", "384 dimensions"),
        suspected="The layer is trained too briefly, or a static encoder spreads its information more evenly.",
        experiment="mao_dims_longer",
    ),
    Reason(
        table="chen_losses",
        rows=("CZ-NCE, words, N = 8",),
        suspected="A batch of 8 has few negatives, and 6,400 pairs are few for words.",
        experiment="chen_longer",
    ),
    Reason(
        table="tan_bt",
        rows=("LASER3, BT", "CO, BT"),
        suspected="The clean text is so small that any English sentence with a few known words helps.",
    ),
)
"""The first that fits a failed order is named on its page."""


def reason_of(table: str, better: str, worse: str) -> Reason | None:
    """The suspected cause of a failed order."""
    for reason in REASONS:
        if reason.table == table and {better, worse} & set(reason.rows):
            return reason
    return None

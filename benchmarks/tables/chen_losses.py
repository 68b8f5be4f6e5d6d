"""InfoNCE and CZ-NCE, of sentences and of words, in small and larger batches: Chen et al. 2023, table 1."""

from dataclasses import replace

from benchmarks.tables.definition import UNTRAINED, Claim, Column, Row, Table

FOUND, LONG, TOPICS = "test/tatoeba/accuracy", "test/flores/accuracy", "test/topics/accuracy"
EVERY = (FOUND, LONG, TOPICS)
VARIANTS = {
    "info_snt": "InfoNCE, sentences",
    "cz_snt": "CZ-NCE, sentences",
    "ml_ctl_info": "InfoNCE, words",
    "ml_ctl_cz": "CZ-NCE, words",
}
BATCHES = (8, 32, 128)
CZ = "table 1: Tatoeba 41.751 against 41.148, XNLI 66.862 against 66.255"
WORDS = "table 1: Tatoeba 43.389 against 41.751, XNLI 67.750 against 66.862"
EXTENDED = "extended by us to FLORES, topics"  # the paper names no batch


def row(variant: str, batch: int) -> str:
    """The name of a row."""
    return f"{VARIANTS[variant]}, N = {batch}"


CONTRASTS = [
    Row(name=row(variant, batch), settings={"variant": variant, "training.global_batch": batch})
    for batch in BATCHES
    for variant in VARIANTS
]
CHEN_LOSSES = Table(
    name="chen_losses",
    title="ML-CTL: InfoNCE and CZ-NCE, sentences and words",
    paper="Chen et al. 2023, table 1.",
    budget="not printed. The released code goes on from mBERT with 25 million pairs of the UN corpus in batches of 64.",
    ours="A Transformer of two layers of 128 goes on from one that was trained by masked language modelling, whose "
    "tokens began with those of a somewhat aligned static student. French and Russian with English. Topics are "
    "SIB-200's, learnt in English and predicted in all three languages, in place of XNLI. Who always names the largest "
    "topic is right in 24 of 90 sentences, or .267. So topics are at the floor. N is the batch. *Untrained* is the "
    "encoder that it goes on from.",
    sweep="search_spaces/reproduce/chen_losses.yaml",
    before=("search_spaces/reproduce/chen_tokens.yaml", "search_spaces/reproduce/chen_start.yaml"),
    start="models:/chen_start@champion",
    start_kind="transformer",
    from_scratch=False,
    rows=(*CONTRASTS, Row(name="MLM alone, N = 32", settings={"variant": "mlm", "training.global_batch": 32})),
    columns=(
        Column(metric=FOUND, title="Tatoeba"),
        Column(metric=LONG, title="FLORES"),
        Column(metric=TOPICS, title="topics"),
    ),
    claims=(
        *(
            claim
            for batch in BATCHES
            for claim in (
                Claim(
                    better=row("cz_snt", batch),
                    worse=row("info_snt", batch),
                    metrics=EVERY,
                    paper=f"{CZ}; {EXTENDED} and N = {batch}",
                ),
                Claim(
                    better=row("ml_ctl_cz", batch),
                    worse=row("cz_snt", batch),
                    metrics=EVERY,
                    paper=f"{WORDS}; {EXTENDED} and N = {batch}",
                ),
            )
        ),
        Claim(
            better=row("info_snt", 32),
            worse="MLM alone, N = 32",
            metrics=EVERY,
            paper="table 1: Tatoeba 41.148 against 38.7, XNLI 66.255 against 65.4 of mBERT, the start; "
            f"{EXTENDED}, MLM alone and N = 32",
        ),
    ),
    rates=(3e-4, 1.5e-3),
)

LONGER = 4  # how many times as many pairs the experiment's rows see


def longer(variant: str) -> Row:
    """A row of the smallest batches, trained for longer."""
    return Row(
        name=f"{row(variant, 8)}, longer",
        settings={"variant": variant, "training.global_batch": 8},
        changes=(f"training.pairs={6400 * LONGER}",),
    )


CHEN_LONGER = Table(
    name="chen_longer",
    title="ML-CTL: whether words need longer",
    paper="A table of our own, on an order that `chen_losses` does not find.",
    budget="",
    ours=f"Two rows of `chen_losses` see {LONGER} times as many pairs, at the learning rate that both had there.",
    sweep=CHEN_LOSSES.sweep,
    before=CHEN_LOSSES.before,
    start=CHEN_LOSSES.start,
    start_kind=CHEN_LOSSES.start_kind,
    from_scratch=False,
    rows=(longer("cz_snt"), longer("ml_ctl_cz")),
    columns=CHEN_LOSSES.columns,
    claims=(
        Claim(
            better=longer("ml_ctl_cz").name,
            worse=longer("cz_snt").name,
            metrics=EVERY,
            paper=f"{WORDS}; {EXTENDED} and N = 8",
        ),
    ),
    rates=(3e-4,),
)

OF_ENCODER = {variant: VARIANTS[variant] for variant in ("info_snt", "cz_snt", "ml_ctl_cz")}

CHEN_ENCODER = replace(
    CHEN_LOSSES,
    name="chen_encoder",
    title="ML-CTL: a real multilingual encoder",
    budget="",
    ours="multilingual-e5-small, cut to the tokens of the text, goes on from masked language modelling on 20,000 "
    "pairs. Its head is trained anew in each row. Each training sees 200,000 pairs, French and Russian with English, "
    "in batches of 64. Topics are as in `chen_losses`. *Untrained* is the encoder after masked language modelling.",
    sweep="search_spaces/reproduce/chen_encoder.yaml",
    before=("search_spaces/reproduce/chen_encoder_start.yaml",),
    start="models:/chen_encoder_start@champion",
    rows=tuple(Row(name=name, settings={"variant": variant}) for variant, name in OF_ENCODER.items()),
    claims=(
        Claim(better=VARIANTS["cz_snt"], worse=VARIANTS["info_snt"], metrics=EVERY, paper=f"{CZ}; {EXTENDED}"),
        Claim(better=VARIANTS["ml_ctl_cz"], worse=VARIANTS["cz_snt"], metrics=EVERY, paper=f"{WORDS}; {EXTENDED}"),
        Claim(
            better=VARIANTS["info_snt"],
            worse=UNTRAINED,
            metrics=EVERY,
            paper=f"table 1: Tatoeba 41.148 against 38.7, XNLI 66.255 against 65.4 of mBERT, the start; {EXTENDED}",
        ),
    ),
    rates=(2e-6, 1e-5, 5e-5),
)

"""Every method on the tiny sweep: what each asks of it besides its name, as `--set` takes it."""

LITTLE = "data.train=[{name: natural, path: natural_train.tsv, columns: {eng: eng, fra: fra, kor: kor}, cap: 40}]"
"""A frozen encoder encodes every text of these."""
SETTINGS: dict[str, tuple[str, ...]] = {
    "soft_contrastive": (),
    "mse_distillation": (),
    "translation_ranking": (),
    "laser3_co": ("config={queue: 20}",),
    "lealla": ("teacher.target_side=copy_anchor",),
    "combined": ("config={soft_contrastive: 1.0, laser3_co: 0.5, settings: {laser3_co: {variant: co, queue: 20}}}",),
    "ml_ctl": ("data.words={align: mutual, least: 0.2, stop_words: 50}", "student.projection=null"),
    "dimension_reduction": ("config={dim: 16}", "student={}", LITTLE, "data.dev.1.limit=20"),
    "bilingual_aligner": (
        "config={depth: 1, hidden: 16, output: 8, dropout: 0.5}",
        "student={}",
        LITTLE,
        "data.dev.1.limit=20",
    ),
}


def assignments(method: str) -> list[str]:
    """What turns the tiny sweep file into one of this method."""
    return [f"method={method}", "parameters={}", "budget.trials=1", *SETTINGS[method]]


EVERYDAY = "{name: everyday, source: {name: everyday, path: natural_dev.tsv, columns: {eng: eng, fra: fra}}}"
GRADED = (f"data.dev=[{EVERYDAY}]", "data.graded=[{name: sts, path: sts.tsv, language: eng}]")
"""Assignments that let the bundled graded pairs train, which are then no dev set."""

"""The mistakes that a newcomer is most likely to make, each with the message that it gets.

`tests/cli/test_newcomers.py` makes each of them, and checks that the table of `docs/how-to/troubleshoot.md` says the
same. `python tests/newcomers.py` writes that table."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "troubleshoot.md"
BEGIN, END = "<!-- newcomers: written by tests/newcomers.py -->\n", "<!-- end of newcomers -->\n"
PLAN = ("plan", "{tiny}", "--no-calibrate")


@dataclass(frozen=True)
class Mistake:
    """One mistake: what was done, the command, its exit code, and the message's value, rule and next step."""

    did: str
    arguments: tuple[str, ...]
    value: str
    rule: str
    step: str
    code: int = 2

    @property
    def row(self) -> str:
        """The line of the page's table."""
        parts = [part.strip() for part in dict.fromkeys((self.value, self.rule, self.step))]
        message = " … ".join(part for part in parts if not any(part != each and part in each for each in parts))
        words = re.sub(r"\{(\w+)\}", lambda name: SHOWN[name[1]], message).replace("|", r"\|")
        return f"| {self.did} | {words} |"


SHOWN = {"cluster": "my_cluster.yaml", "data": "data", "port": "5001", "begun": "tiny"}
"""What the page shows for a name that a test fills in."""


def read(path: str, columns: str = "{{eng: eng, fra: fra}}") -> tuple[str, ...]:
    """A plan whose training text is this file."""
    dev = "{{name: everyday, source: {{name: d, path: dev.tsv, columns: {{eng: eng, fra: fra}}}}}}"
    train = f"{{{{name: mine, path: {path}, columns: {columns}}}}}"
    return with_("data.root={data}", f"data.train=[{train}]", f"data.dev=[{dev}]", "data.test=[]")


def with_(*assignments: str) -> tuple[str, ...]:
    """A plan with these assignments."""
    return (*PLAN, *(word for each in assignments for word in ("--set", each)))


MISTAKES = (
    Mistake(
        "a sweep file that is not there",
        ("plan", "search_spaces/quickstrat.yaml"),
        "no file 'search_spaces/quickstrat.yaml'",
        "no file",
        "did you mean 'search_spaces/quickstart.yaml'?",
    ),
    Mistake(
        "a cluster file in place of a sweep file",
        ("plan", "{cluster}"),
        "{cluster}: this is a cluster file",
        "not a sweep file",
        "it goes behind --cluster",
    ),
    Mistake(
        "a cluster file as an overlay",
        (*PLAN, "--with", "{cluster}"),
        "{cluster}: this is a cluster file",
        "not an overlay",
        "it goes behind --cluster",
    ),
    Mistake(
        "a misspelt key",
        ("plan", "{typo}"),
        "scheduler.knid: unknown key 'knid' with value 'none'",
        "allowed: kind, grace, reduction",
        "did you mean 'kind'?",
    ),
    Mistake(
        "a misspelt metric",
        with_("objectives=[{{metric: dev/everyday/acuracy}}]"),
        "'dev/everyday/acuracy' is not scored",
        "allowed: dev/everyday/accuracy",
        "did you mean 'dev/everyday/accuracy'?",
    ),
    Mistake(
        "the training loss as objective",
        with_("objectives=[{{metric: train/loss, goal: minimize}}]"),
        "'train/loss' is no objective",
        "each changes what a loss of 1 means",
        "Select on what the vectors do; allowed: dev/everyday/accuracy",
    ),
    Mistake(
        "a misspelt method",
        with_("method=soft_contrastiv"),
        "no method 'soft_contrastiv' is installed",
        "available: bilingual_aligner",
        "did you mean 'soft_contrastive'?",
    ),
    Mistake(
        "a misspelt language",
        with_("data.anchor_priority=[engl]"),
        "data.anchor_priority: none of engl is a language of data.train",
        "allowed: eng, fra, kor",
        "did you mean 'eng'?",
    ),
    Mistake(
        "a data root that is not there",
        with_("data.root=/no/such/folder"),
        "'/no/such/folder' means the folder /no/such/folder",
        "which does not exist",
        "change data.root or its variable",
    ),
    Mistake(
        "a data file that is not there",
        read("trian.tsv"),
        "{data}/trian.tsv does not exist",
        "{data} holds no 'trian.tsv'",
        "did you mean 'train.tsv'?",
    ),
    Mistake(
        "a column that the file does not have",
        read("train.tsv"),
        "train.tsv:1: no column 'eng'",
        "columns: english, french",
        "did you mean 'english'?",
    ),
    Mistake(
        "an empty file",
        read("empty.tsv"),
        "empty.tsv is empty",
        "a table has a header or at least one row",
        "put rows in it, or leave the source out",
    ),
    Mistake(
        "too few pairs",
        read("one.tsv"),
        "one pair is left to train on in each language pair",
        "no batch of it has a negative",
        "give data.train more rows",
    ),
    Mistake(
        "one name for two sources",
        with_(
            "data.train=[{{name: a, path: natural_train.tsv, columns: {{eng: eng, fra: fra}}}}, "
            "{{name: a, path: natural_train.tsv, columns: {{eng: eng, kor: kor}}}}]"
        ),
        "data.train.1.name: 'a'",
        "is used twice",
        "give each its own name",
    ),
    Mistake(
        "`--set` without a value",
        with_("training.pairs"),
        "--set training.pairs",
        "write KEY=VALUE",
        "for example training.learning_rate=1e-4",
    ),
    Mistake(
        "`--set` with a word for a number",
        with_("training.pairs=many"),
        "training.pairs: 'many' is not possible",
        "allowed: a whole number",
        "allowed: a whole number",
    ),
    Mistake(
        "a negative temperature",
        with_("parameters={{}}", "config={{temperature: -1}}"),
        "temperature is -1",
        "it must be above 0",
        "it must be above 0",
    ),
    Mistake(
        "a static student for a method that reads token states",
        with_("student={{kind: static}}", "method=ml_ctl", "parameters={{}}"),
        "student.kind: 'static': method 'ml_ctl' reads token states",
        "a static student has none",
        "choose another method, or a Transformer",
    ),
    Mistake(
        "`promote` before a trial has finished",
        ("promote", "{begun}"),
        "{begun} has no finished trial",
        "states: t0000 stopped",
        "goes on",
        code=1,
    ),
    Mistake(
        "`promote` of an unknown sweep", ("promote", "savd"), "no sweep 'savd'", "sweeps: ", "did you mean 'saved'?"
    ),
    Mistake(
        "a trial that is not there",
        ("status", "saved/t0042"),
        "has no trial 't0042'",
        "trials: t0000, t0001",
        "the nearest is t0001",
    ),
    Mistake(
        "`extend` to no more trials than before",
        ("extend", "saved", "--trials", "1"),
        "--trials 1",
        "has a budget of 2 trials",
        "give more than that",
    ),
    Mistake(
        "a busy port",
        ("watch", "saved", "--port", "{port}"),
        "--port {port}: 127.0.0.1:{port} cannot be used",
        "cannot be used",
        "end what listens there, or give another port",
        code=1,
    ),
    Mistake(
        "a checkpoint that was altered",
        ("evaluate", "saved/t0001", "--with", "{tiny}"),
        "student.safetensors is damaged",
        "recorded was",
        "restore it from a copy, or name another trial",
        code=1,
    ),
)


def table() -> str:
    """The page's part between its two marks."""
    rows = [mistake.row for mistake in MISTAKES]
    return "\n".join([f"{BEGIN}| what was done | what babeltune says |", "|---|---|", *rows, END])


def main() -> None:
    """Writes the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + table() + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()

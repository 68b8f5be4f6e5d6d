"""Writes `docs/tables/NAME.md` from a table's record, and the index of all tables. Nothing else goes into a page."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from babeltune.files import write_whole
from benchmarks.tables.choices import CHOICE, CHOOSING, advice_on, choices_of
from benchmarks.tables.curve import dims_of, draw_curve
from benchmarks.tables.definition import START, UNTRAINED, Record
from benchmarks.tables.heat_map import draw
from benchmarks.tables.reasons import Reason, reason_of
from benchmarks.tables.sampling import ARI
from benchmarks.tables.spread import TITLE, draw_spread
from benchmarks.tables.verdict import NORMAL, logged_of, mean_of, order_of, over_seeds, table_of, verdict

ROOT = Path(__file__).parents[2]
RECORDS = Path("docs/measured/tables")
PAGES = Path("docs/tables")
CHOSEN = """\
The learning rate of each row is chosen by the dev sets, with a seed that the table does not use."""
READING = """\
The scores are those of sealed sets, mean and standard deviation over the seeds. *Untrained* is the student before its
first step. A start and a teacher are trained once, with one seed."""
COST = "Text and teacher vectors that the storage held before are not in the CPU time."
JUDGING = """\
A difference is the first row minus the second, with the same seeds and the same test sentences. The first interval is
Student's 95 % interval over seeds. The second is the 95 % interval over test sentences, with the seeds averaged. An
ordering holds, or fails, if both intervals lie on one side of zero. If the rows have different learning rates, the dev
sets must show the same order with the one's rate for both, and with the other's, where both were searched there. If no
dev set is of the objective's kind, the last column says so. There is no correction for the number of orderings."""
LEVEL = """\
Two rows that should be level are so if both intervals lie within the margin. Their rates are not compared."""
CLUSTERED = """\
The interval of an adjusted Rand index draws sentences anew and keeps the clusters."""
UNPAIRED = """\
This record is of an earlier version, whose intervals of an xSIM error over sentences take the two rows as independent.
They are wider than those of paired differences, so more orders are undecided."""
LENGTHS = ("training.pairs", "training.global_batch", "training.compute")
"""The settings by which a row may change the length of its training."""
INDEX = """\
# The papers' tables

Each page is a table of a paper, trained and scored on real text at a budget of CPU minutes. `make table TABLE=NAME`
runs one and writes its page. `python -m benchmarks.tables NAME --plan` prints what it would run, and for how long. A
table that was not run has no page.

`--words` takes changed words of a definition into the kept record, if nothing else was changed.

With `--check` the command compares with the kept record and writes nothing. `--cluster FILE` names a file whose storage
is empty, so the table is trained from scratch. Each mean must lie in Student's 95 % interval of the kept seeds."""
CARE = """\
## Read with care

* Each page says how many rows have a learning rate at an edge of what was searched. In `chen_losses`,
  `mao_dims`, `mao_shapes`, `mao_teacher`, `tan_bt` and those that go on longer, no rate beyond two was searched.
* In Park's tables the temperature is .75, where labels of our teachers are as hard as E5's at the paper's .1. One
  temperature serves labels and student, as in the authors' code, but the English teacher has .8. Hard labels and mUSE
  do better at lower ones. `park_labels` has orders against hard labels at .1 too.
* In `chen_losses`, a training sees 6,400 pairs and finds 2 to 7 % of the translations. Topics are at the floor: always
  to say the largest is right for .267 of them.
* In `tan_bt`, the start of *CO* has seen half as much text of the Bible as that of *BT, then CO*.
* A claim says *extended by us* if its paper prints the order of another score or setting. Languages and test sets of
  Park's tables are ours, and the paper's are named beside the figures.
* A start and a teacher are trained once, so an interval over seeds holds for this start."""
EDGE = "The best rate is an edge of what was searched in {} of {} rows."
FAILED = "## Where the order fails"
SWEEPS = {
    "mao_dims": "dimension_reduction",
    "chen": "ml_ctl",
    "li": "bilingual_aligner",
    "mao": "lealla",
    "park": "soft_contrastive_grid",
    "tan": "laser3_co",
}
"""The sweep file at the paper's scale, by how a table's name begins."""


def page(record: Record, others: Iterable[Record] = ()) -> str:
    """The page of a table. The other tables' records answer why its orders fail."""
    run, seeds = record["run"], len(record["run"]["seeds"])
    differ = any(key in f"{row['settings']} {row['changes']}" for row in record["rows"] for key in LENGTHS)
    length = (
        f"costs {run['compute']:g} counted seconds of one worker"
        if "compute" in run
        else f"sees {run['pairs']:,} pairs in batches of {run['batch']:,}"
    )
    ours = (
        f"{record['ours']} Each training {length}{', unless its row says otherwise' if differ else ''}. "
        f"There are {seeds} seeds. The whole table cost {run['cpu_seconds'] / 3600:.2f} CPU hours. {COST}"
    )
    parts = [f"# {record['title']}", f"{record['paper']} `{record['command']}` writes this page."]
    if record["budget"]:
        parts.append(f"The paper's budget: {record['budget']}")
        sweep = next(sweep for begin, sweep in SWEEPS.items() if record["name"].startswith(begin))
        parts.append(
            f"At that scale, on a cluster: `babeltune submit search_spaces/papers/{sweep}.yaml --cluster FILE`"
        )
    parts.append(f"Ours: {ours}")
    if "uses" in record:
        parts += [CHOICE, CHOOSING, choices_of(record), *advice_on(record), record["limits"]]
    parts += ["## Scores", f"{CHOSEN} {READING}" if _searches(record) else READING, _scores(record)]
    if "heat_map" in record:
        parts.append(_picture(record))
    parts += [*_distribution(record), *_curve(record), "## Orderings", *_judging(record), _orderings(record)]
    parts += [*_failures(record, {other["name"]: other for other in others}), "## The run", _run(record)]
    return "\n\n".join(parts) + "\n"


def _judging(record: Record) -> Iterator[str]:
    """How orders are judged, as far as the table has such orders."""
    yield JUDGING
    metrics = [claim["metric"] for claim in record["claims"]]
    if any(claim["kind"] == "level" for claim in record["claims"]):
        yield LEVEL
    if any(metric.endswith(f"/{ARI}") for metric in metrics):
        yield CLUSTERED
    if any("xsim" in metric for metric in metrics) and not record["run"].get("paired"):
        yield UNPAIRED


def index(records: Iterable[Record]) -> str:
    """The page that names all tables."""
    rows = []
    for record in records:
        verdicts = Counter(verdict(claim, record).outcome for claim in record["claims"])
        hours = f"{record['run']['cpu_seconds'] / 3600:.2f}"
        counts = [verdicts[name] for name in ("holds", "fails", "undecided")]
        rows.append([f"[{record['title']}]({record['name']}.md)", *counts, hours])
    return f"{INDEX}\n\n{table_of(['table', 'holds', 'fails', 'undecided', 'CPU hours'], rows)}\n\n{CARE}\n"


def read_records(root: Path = ROOT) -> list[Record]:
    """The records of all tables that were run, by name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted((root / RECORDS).glob("*.json"))]


def write(record: Record, root: Path = ROOT) -> Path:
    """Keeps the record, and writes its page and the index."""
    for folder in (RECORDS, PAGES):
        (root / folder).mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    write_whole(root / RECORDS / f"{record['name']}.json", text.encode())
    records = read_records(root)
    for entry in records:
        if "heat_map" in entry:
            draw(entry["heat_map"], root / PAGES / f"{entry['name']}.svg")
        elif "distribution" in entry:
            draw_spread(entry["distribution"], root / PAGES / f"{entry['name']}.svg")
        elif dims_of(entry):
            draw_curve(entry, root / PAGES / f"{entry['name']}.svg")
        write_whole(root / PAGES / f"{entry['name']}.md", page(entry, records).encode())
    write_whole(root / PAGES / "index.md", index(records).encode())
    return root / PAGES / f"{record['name']}.md"


def _picture(record: Record) -> str:
    maps = record["heat_map"]
    left, right = maps["languages"]
    words = f"cosines of sentences in {left} and {right}, before and after training"
    return f"![{words}]({record['name']}.svg)\n\nThe picture shows {words}, of the best trial, `{maps['trial']}`."


def _distribution(record: Record) -> list[str]:
    if "distribution" not in record:
        return []
    words = f"density of the {TITLE} of a sentence and the queue, {' and '.join(record['distribution'])}"
    return [
        f"![{words}]({record['name']}.svg)",
        f"The picture shows the {words}. It has the sentences of one training, and dotted lines at the medians.",
    ]


def _curve(record: Record) -> list[str]:
    if not dims_of(record):
        return []
    scores = " and ".join(column["title"] for column in record["columns"])
    words = f"scores by dimension, {scores}"
    start = f" A dotted line is the score of *{record['start_name']}*." if "start_name" in record else ""
    caption = f"The picture shows the {words}. Bars are standard deviations over seeds.{start}"
    return [f"![{words}]({record['name']}.svg)", caption]


def _failures(record: Record, others: Mapping[str, Record]) -> list[str]:
    """The failed orders of a paper by what is suspected, and what the experiment that looks for it says."""
    titles = {column["metric"]: column["title"] for column in record["columns"]}
    orders: dict[tuple[str, str], list[str]] = {}
    for claim in record["claims"] if record["budget"] else ():
        if verdict(claim, record).outcome == "fails":
            reason = reason_of(record["name"], claim["better"], claim["worse"])
            why = (reason.suspected if reason else "nothing yet", _answer(reason, others))
            orders.setdefault(why, []).append(f"{order_of(claim, record)}, {titles[claim['metric']]}")
    rows = [["; ".join(lines), *why] for why, lines in orders.items()]
    return [FAILED, table_of(["orders", "suspected", "what an experiment says"], rows)] if rows else []


def _answer(reason: Reason | None, others: Mapping[str, Record]) -> str:
    """The verdicts of the experiment's orders."""
    if reason is None or reason.experiment is None:
        return "no experiment yet"
    record = others.get(reason.experiment)
    claims = [
        claim
        for claim in (record["claims"] if record else ())
        if reason.answered_by(claim["better"], claim["worse"], claim["metric"])
    ]
    if record is None or not claims:
        return f"not run yet: `make table TABLE={reason.experiment}`"
    titles = {column["metric"]: column["title"] for column in record["columns"]}
    parts = [
        f"{order_of(claim, record)}, {titles[claim['metric']]}: {over_seeds(claim['differences'])[0]:+.4f}, "
        f"**{verdict(claim, record).outcome}**"
        for claim in claims
    ]
    stands = _standing(verdict(claim, record).outcome for claim in claims)
    return f"{stands}: [{record['title']}]({record['name']}.md). {'; '.join(parts)}"


def _standing(verdicts: Iterable[str]) -> str:
    """The conclusion from an experiment's verdicts. The suspicion foretells each of its orders."""
    kinds = set(verdicts)
    if kinds == {"holds"}:
        return "It is so"
    if "holds" in kinds:
        return "It is so in part"
    return "It is not so" if "fails" in kinds else "No answer"


def _scores(record: Record) -> str:
    columns, logged = record["columns"], record["logged"]
    titles = ["row", "learning rate", *(column["title"] for column in columns), *logged.values()]
    rows = []
    for row in record["rows"]:
        scores = [mean_of(row["values"][column["metric"]]) for column in columns]
        means = [logged_of(metric, row["logged"][metric]) if metric in row["logged"] else "" for metric in logged]
        rows.append([row["name"], f"{row['learning_rate']:g}", *scores, *means])
    single = {UNTRAINED: UNTRAINED}
    if "start_name" in record:
        single[START] = record["start_name"]
    for key, name in single.items():
        rows.append([f"*{name}*", "", *(f"{column[key]:.4f}" for column in columns), *[""] * len(logged)])
    return table_of(titles, rows)


def _orderings(record: Record) -> str:
    titles = {column["metric"]: column["title"] for column in record["columns"]}
    rows = []
    for claim in record["claims"]:
        mean, low, high = over_seeds(claim["differences"])
        reach = NORMAL * (claim["sentence_error"] or 0.0)
        result = verdict(claim, record)
        rows.append(
            [
                order_of(claim, record),
                claim["paper"],
                titles[claim["metric"]],
                f"{mean:+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                f"{mean - reach:+.4f} to {mean + reach:+.4f}",
                f"**{result.outcome}**",
                result.why,
            ]
        )
    source = "the paper" if record["budget"] else "who says so"
    heads = ["order", source, "score", "difference", "over seeds", "over sentences", "verdict", "why"]
    return table_of(heads, rows)


def _run(record: Record) -> str:
    run = record["run"]
    rates = sorted({rate for row in record["rows"] for rate in row["searched"]}, key=float)
    searched = []
    for row in record["rows"]:
        scores = [_score(row["searched"][rate]) if rate in row["searched"] else "" for rate in rates]
        searched.append([row["name"], *scores])
    edges = [row["name"] for row in record["rows"] if at_an_edge(row)]
    facts = [
        ("command", f"`{record['command']}`"),
        ("sweeps", ", ".join(f"`{name}`" for name in run["sweeps"])),
        ("commit", f"`{run['commit']}`"),
        ("text", f"`{run['data']['prepared']}`"),
        ("CPU seconds", f"{run['cpu_seconds']:,}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in run["versions"].items())),
    ]
    parts = [
        table_of(["what", "value"], facts),
        f"Learning rates on dev, by `{run['objective']}`:",
        table_of(["row", *rates], searched),
    ]
    if _searches(record):
        parts.append(EDGE.format(len(edges), len(record["rows"])))
    if _searches(record) and edges:
        parts.append("\n".join(f"* {name}" for name in edges))
    return "\n\n".join(parts)


def _searches(record: Record) -> bool:
    """Whether any row has more than one learning rate."""
    return any(len(row["searched"]) > 1 for row in record["rows"])


def at_an_edge(row: Record) -> bool:
    """Whether its learning rate is the least or the largest that was searched."""
    rates = sorted(map(float, row["searched"]))
    return row["learning_rate"] in (rates[0], rates[-1])


def _score(value: float | None) -> str:
    return "not finished" if value is None else f"{value:.4f}"

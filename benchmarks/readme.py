"""The figures of README, from what was measured: `python -m benchmarks.readme` writes them.

`make bench` and `make chaos` call it when they have written their records in docs/measured."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from babeltune.files import write_whole

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "docs" / "measured"
README = ROOT / "README.md"
TITLE = "| what | figure |\n|---|---|\n"  # the head of the table that is written
PAIRS = "mean of four language pairs"
LOST = {"that trial": "the trial at fault"}  # what a fault cost, as its row has it and as README says it


def records(name: str) -> list[list[str]]:
    """The rows of a record in docs/measured."""
    record: dict[str, Any] = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))
    return list(record["rows"])


def of_command(beginning: str, pattern: str) -> str:
    """The first group of a pattern in the figures of the one command whose description begins like this."""
    (figures,) = (figures for title, _, figures in records("figures") if title.startswith(beginning))
    if match := re.search(pattern, figures):
        return match[1]
    raise ValueError(f"the figures of {beginning!r} have no {pattern!r}")


def faults() -> str:
    """How many faults there are, and what they cost. A cost of a single fault stands beside its name."""
    rows = [(fault, re.split("[,;]", loss)[0]) for fault, _, _, loss, _ in records("faults")]
    parts = []
    for loss, count in Counter(loss for _, loss in rows).most_common():
        name = f" ({next(fault for fault, cost in rows if cost == loss)})" if count == 1 else ""
        parts.append(f"{count} lost {LOST.get(loss, loss)}{name}")
    return f"{len(rows)}: {', '.join(parts)}"


def table() -> str:
    """The rows of the table."""
    ratios = {name: ratio for name, ratio, *_ in records("benchmarks")}
    rows = {
        f"quickstart, sealed retrieval among 120 sentences, {PAIRS}": "{} in {}".format(
            of_command("the quickstart,", r"mean (0\.\d+)"), of_command("the quickstart,", r"promotion (\d+ s)")
        ),
        f"main job on real text: sealed Tatoeba among 1,000, {PAIRS}": "{} in {} from nothing".format(
            of_command("the main job:", r"mean (0\.\d+)"), of_command("the main job:", r"(\d+ min \d+ s) from nothing")
        ),
        "pairs per CPU second against sentence-transformers' trainer": (
            f"{ratios['train']} times (Transformer), {ratios['static_train']} times (static)"
        ),
        "first step of a trial against stock `TorchTrainer` in Tune": f"{ratios['trial_start']} times sooner",
        "faults injected into sweeps": faults(),
    }
    return TITLE + "".join(f"| {title} | {figure} |\n" for title, figure in rows.items())


def write_after(record: Path) -> None:
    """Writes the table anew if this file is one of the records that it is made from."""
    if record.resolve().parent == MEASURED:
        write()


def write() -> None:
    """Writes the table in the place of the one that is there."""
    text = README.read_text(encoding="utf-8")
    before, head, after = text.partition(TITLE)
    if not head:
        raise ValueError(f"{README.name} has no table with the head {TITLE!r}")
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    write_whole(README, (before + table() + rest).encode())


if __name__ == "__main__":
    write()

"""Where the numbers of a report come from: the data and its cleaning, the cost, and how to run it again."""

import shlex

from babeltune.sweep_report.document import Block, CodeBlock, Items, Paragraph, ReportTable, Section
from babeltune.sweep_report.record import DataFacts, SweepReport
from babeltune.sweep_report.words import duration


def data(facts: DataFacts) -> Section | None:
    """The training text, what was left out of it, and which sets have near-duplicates in it."""
    blocks = list[Block]()
    if facts.pairs:
        by_languages = tuple((each.name, f"{each.pairs:,}") for each in facts.pairs)
        blocks.append(
            ReportTable(caption="Training pairs by language", columns=("languages", "pairs"), rows=by_languages)
        )
    if facts.sources:
        steps = tuple(dict.fromkeys(name for source in facts.sources for name, _ in source.steps))
        rows: list[tuple[str, ...]] = []
        for source in facts.sources:
            name, counts = source.name + (" (synthetic)" if source.synthetic else ""), dict(source.steps)
            rows.append((name, *(f"{counts[step]:,}" if step in counts else "–" for step in steps)))
        caption = "Rows of each source, and the pairs that each step of cleaning left"
        blocks.append(ReportTable(caption=caption, columns=("source", *steps), rows=tuple(rows)))
    if facts.overlaps:
        caption = "Contamination: dev and test texts with a near-duplicate in the training text"
        columns = ("set", "texts", "near-duplicates", "share", "judgement")
        overlaps = tuple(
            (each.name, f"{each.texts:,}", f"{each.near:,}", f"{each.share:.1%}", each.judged or "low")
            for each in facts.overlaps
        )
        blocks.append(ReportTable(caption=caption, columns=columns, rows=overlaps, left=frozenset({0, 4})))
    return Section(anchor="data", title="Data and contamination", blocks=tuple(blocks)) if blocks else None


def cost(report: SweepReport) -> Section:
    """The section on time and compute: trials by state, pairs, seconds."""
    spent = report.cost
    rows = [
        *((f"trials {state}", str(count)) for state, count in spent.states),
        ("pairs seen, all trials", f"{spent.pairs:,}"),
        ("training time, all trials", duration(spent.training_s)),
        ("the same, times workers", duration(spent.worker_s)),
    ]
    if spent.compute_s is not None:
        rows.append(("counted compute of one worker", duration(spent.compute_s)))
    rows.append(("from the first line of the log to the last", duration(spent.wall_s)))
    table = ReportTable(caption="What the sweep took", columns=("what", "how much"), rows=tuple(rows))
    return Section(anchor="cost", title="Cost", blocks=(table,))


def reproduction(report: SweepReport) -> Section:
    """The command, the sweep file and the digests."""
    origin = report.provenance
    command = f"babeltune submit {shlex.quote(origin.file)}"
    blocks: list[Block] = [
        Paragraph(
            text=f"Save the sweep file below as {origin.file}, then run the command. The sweep gets the id {origin.id}."
        ),
        CodeBlock(label="Command", text=command),
        CodeBlock(label=f"Sweep file {origin.file}", text=origin.spec, folded=True),
    ]
    if origin.changes:
        blocks.append(Items(items=origin.changes))
    for caption, columns, rows in (
        ("Code and data", ("what", "version or digest"), origin.code),
        ("Packages and machine", ("package", "version"), origin.versions),
        ("Digests of sources and evaluation sets", ("text", "SHA-256"), origin.digests),
        (f"Checkpoint of {report.winner.row.name}", ("file", "SHA-256"), origin.weights),
    ):
        if rows:
            blocks.append(ReportTable(caption=caption, columns=columns, rows=rows, left=frozenset({0, 1})))
    return Section(anchor="reproduce", title="To reproduce it", blocks=tuple(blocks))

"""Takes the words of a definition into the record that is kept. Pure: a record and its table in, a record out.

Only the words may differ, such as titles and citations. Whatever a figure depends on must be the same."""

from typing import Any

from benchmarks.tables.definition import Record, Table

ORDER = ("better", "worse", "metric", "times", "kind", "margin")  # what a claim says, less its words


def with_words(record: Record, table: Table) -> dict[str, Any]:
    """The record with the table's words, and without orders that the table no longer has.

    Raises `ValueError` if the table measures anything else, or has an order that the record does not judge."""
    judged = {tuple(claim[key] for key in ORDER): claim for claim in record["claims"]}
    claims = {
        (claim.better, claim.worse, metric, claim.times, claim.kind, claim.margin): claim.paper
        for claim in table.claims
        for metric in claim.metrics
    }
    recorded, defined = _measured(record, len(table.rates)), _defined(table)
    problems = [
        f"{what}: {recorded[what]} is not {defined[what]}" for what in defined if recorded[what] != defined[what]
    ]
    problems += [f"no order of {' and '.join(order[:2])} in {order[2]}" for order in claims.keys() - judged.keys()]
    if problems:
        raise ValueError(
            f"the record of {table.name} is not of this table; run it again: {'; '.join(sorted(problems))}"
        )
    columns = zip(record["columns"], table.columns, strict=True)
    words: dict[str, Any] = {
        "title": table.title,
        "paper": table.paper,
        "budget": table.budget,
        "ours": table.ours,
        "columns": [recorded | {"title": column.title} for recorded, column in columns],
        "logged": table.logged,
        "claims": [judged[order] | {"paper": paper} for order, paper in claims.items()],
    }
    if table.start_name:
        words["start_name"] = table.start_name
    if table.uses:
        words["uses"] = [{**entry, "use": table.uses[entry["metric"]]} for entry in record["uses"]]
        words["limits"] = table.limits
    return {**record, **words}


def _measured(record: Record, rates: int) -> dict[str, Any]:
    """Everything that the figures of a record depend on. The search began with `rates` learning rates."""
    return {
        "name": record["name"],
        "rows": [
            [row["name"], row["settings"], row["changes"], list(row["searched"])[:rates]] for row in record["rows"]
        ],
        "columns": [column["metric"] for column in record["columns"]],
        "seeds": record["run"]["seeds"],
        "logged": list(record["logged"]),
        "uses": [use["metric"] for use in record.get("uses", ())],
        "a start": "start_name" in record,
        "a heat map": "heat_map" in record,
        "a distribution": list(record.get("distribution", ())),
    }


def _defined(table: Table) -> dict[str, Any]:
    """The same of a table."""
    return {
        "name": table.name,
        "rows": [
            [row.name, row.settings, list(row.changes), [f"{rate:g}" for rate in row.rates(table.rates)]]
            for row in table.rows
        ],
        "columns": [column.metric for column in table.columns],
        "seeds": list(table.seeds),
        "logged": list(table.logged),
        "uses": list(table.uses),
        "a start": bool(table.start_name),
        "a heat map": table.heat_map,
        "a distribution": list(table.distribution),
    }

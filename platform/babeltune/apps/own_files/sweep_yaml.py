"""The sweep file that `init` writes: YAML with a comment for what a user may want to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from babeltune.apps.own_files.proposal import Proposal
from babeltune.apps.own_files.splits import Group

SMALL_SETTINGS = """\
method: combined
config:
  laser3_co: 1
  settings:
    laser3_co: {variant: in_batch, temperature: 0.05}
    translation_ranking: {hard_negatives: 0, temperature: 0.05}
# What is searched. A line less is a setting less; `babeltune methods combined` lists the others.
parameters:
  translation_ranking: {log_float: [0.1, 3]}
  student.width: {choice: [256, 512, 1024]}
  training.learning_rate: {log_float: [1.0e-3, 1.0e-2]}
  training.embedding_learning_rate: {log_float: [1, 30]}
"""
"""The settings of `search_spaces/static.yaml`, which was measured on small corpora."""
LARGE_SETTINGS = """\
method: combined
config:
  laser3_co: 1
  settings:
    laser3_co: {variant: in_batch, temperature: 0.08}
    mse_distillation: {}
    translation_ranking: {hard_negatives: 0, temperature: 0.05}
# What is searched. A line less is a setting less; `babeltune methods combined` lists the others.
parameters:
  translation_ranking: {log_float: [3, 10]}
  mse_distillation: {log_float: [10, 100]}
  student.width: {choice: [512, 1024]}
  student.vocabulary: {choice: [24000, 48000]}
  student.ngrams: {choice: [0, 50000]}
  training.learning_rate: {log_float: [5.0e-4, 3.0e-3]}
  training.embedding_learning_rate: {log_float: [5, 20]}
"""
"""The settings of `search_spaces/encoder.yaml`, which was measured on millions of pairs."""


def sweep_yaml(name: str, folder: Path, groups: Sequence[Group], proposal: Proposal, given: Sequence[str]) -> str:
    """The text of the sweep file. `folder` holds the split files, `given` are the user's files."""
    teacher = proposal.teacher
    knows = ", ".join(teacher.languages)
    pool = min(group.size("test") for group in groups)
    files = "\n".join(f"#   {' '.join(each.split())}" for each in given)
    return f"""\
# Written by `babeltune init` from:
{files}
# Check: `babeltune plan {name}.yaml`. Run: `babeltune submit {name}.yaml`. Keep the best: `babeltune promote {name}`.
version: 1
name: {quoted(name)}
description: {quoted(f"A static student for {', '.join(proposal.languages)}.")}

# The losses: the teacher's vectors and the translation, each among those of the batch.
{LARGE_SETTINGS if proposal.large else SMALL_SETTINGS}# How often a sentence finds its translation in the dev set.
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

# A static student trains and encodes at a fraction of a Transformer's cost, and needs no GPU. For a Transformer:
# docs/how-to/choose-a-student.md.
student: {{kind: static, width: 512, vocabulary: {proposal.vocabulary}, lowercase: true,
  max_tokens: 64, projection: teacher}}
# The teacher gives the targets. It has to know the languages in this list, and one language of each row.
teacher: {{model: {quoted(teacher.model)}, languages: [{knows}]}}
# {proposal.pairs:,} pairs are {proposal.pairs / proposal.rows:.1f} passes over {proposal.rows:,} rows.
training: {{pairs: {proposal.pairs}, reports: 5, global_batch: {proposal.global_batch}}}

# Trials that are among the worse at a report are stopped there.
scheduler: {{kind: asha, grace: 1, reduction: 3}}
sampler: {{kind: tpe, startup: {min(8, proposal.trials)}}}
# More trials find better settings: `babeltune extend --trials {3 * proposal.trials} {name}`. `minutes: 30` ends sooner.
budget: {{trials: {proposal.trials}}}
# A model is registered if it finds the translation 5 times as often as chance ({1 / pool:.2%} in the smallest set) and
# oftener than an untrained student.
promotion:
  gates:
    - {{test: mine, times_chance: 5, times_untrained: 1}}
"""


def sources(split: str, groups: Sequence[Group]) -> str:
    """The entries of `train`, `dev` or `test`. All sets are named `mine`, so that they are one set in several files."""
    lines = []
    for group in groups:
        columns = ", ".join(f"{quoted(code)}: {quoted(code)}" for code in group.texts)
        pairs = ", pairs: all" if split != "train" and len(group.texts) > 2 else ""
        words = f"name: {quoted(f'{split}-{group.name}')}, path: {quoted(f'{split}.{group.name}.tsv')}, quoted: false"
        entry = f"{{{words}, columns: {{{columns}}}{pairs}}}"
        entry = entry if split == "train" else f"{{name: mine, source: {entry}}}"
        lines.append(f"    - {entry} # {group.size(split):,} rows")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """The text as YAML reads it back; in quotation marks where it needs them, as `no` and `1e3` do."""
    plain = text.replace("_", "").replace("-", "").isalpha() and text.isascii() and len(text) > 3
    return text if plain and text.lower() not in ("true", "false", "null") else json.dumps(text, ensure_ascii=False)

"""What the tables of Park et al. 2024 share: sealed scores, and what soft labels log."""

from __future__ import annotations

from benchmarks.tables.definition import Column

BITEXT, FLORES = "test/tatoeba/accuracy", "test/flores/accuracy"
ENGLISH, OTHER = "test/sts_eng/spearman", "test/sts_other/spearman"
OF_TATOEBA, OF_FLORES = Column(metric=BITEXT, title="Tatoeba"), Column(metric=FLORES, title="FLORES")
OF_ENGLISH, OF_OTHER = Column(metric=ENGLISH, title="STS English"), Column(metric=OTHER, title="STS French, Russian")
LOGGED = {"train/label_entropy": "label entropy, of log N", "train/label_own": "own pair"}
"""Metric of the training -> its title: how hard the teacher's labels are."""

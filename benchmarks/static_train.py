"""Pairs per CPU-second of a static student's training step against sentence-transformers' trainer.

As `benchmarks.train`, with a table of token vectors in place of a Transformer and batches of 1,024 pairs. Both have the
same gradient. Ours is sparse, and RowAdam changes the rows of a batch alone; the trainer's AdamW changes all rows."""

from benchmarks.race import options
from benchmarks.train import compare

GOAL = 3.0
STEPS, BATCH = 12, 1024
STUDENT = {"kind": "static", "width": 512, "vocabulary": 24_000, "max_tokens": 64, "projection": 384}


def main() -> None:
    """Runs the benchmark."""
    compare("static_train", GOAL, options(__doc__), STEPS, BATCH, **STUDENT)


if __name__ == "__main__":
    main()

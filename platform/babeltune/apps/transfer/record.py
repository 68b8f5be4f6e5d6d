"""The record of a transfer: `transfer --json` prints it, and `--out` writes it."""

from dataclasses import dataclass

from babeltune.apps.transfer.finetune import Settings


@dataclass(frozen=True, kw_only=True)
class Text:
    """A file of examples that was read."""

    path: str
    sha256: str
    rows: int
    dropped: dict[str, int]
    """Reason -> rows that are left out."""


@dataclass(frozen=True, kw_only=True)
class DevText(Text):
    """The English dev file."""

    scores: list[float]
    """The main metric after each epoch."""


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """The outcome of `transfer`."""

    task: str
    model: str
    model_digest: str
    """SHA-256 over the model's files."""
    settings: Settings
    train: Text
    dev: DevText | None
    tests: dict[str, Text]
    """Language -> its file."""
    losses: list[float]
    """The training loss, mean over each epoch's steps."""
    scores: dict[str, dict[str, float]]
    """Language -> metric -> value."""
    average: dict[str, float]
    """The mean of each metric over the languages."""
    english: dict[str, float] | None
    others: dict[str, float] | None
    """The mean without English."""

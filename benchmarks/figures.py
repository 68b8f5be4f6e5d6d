"""Figures of a benchmark: a record in docs/measured, and the page that shows it between two comments."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babeltune.files import json_text, write_whole

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Figures:
    """Where the figures of a benchmark stand."""

    name: str  # of the record
    place: str  # the page, from the root of the checkout
    mark: str  # the name of the two comments on the page
    words: Callable[[Any], str]
    """Makes the Markdown between the comments from the record."""

    @property
    def record(self) -> Path:
        return ROOT / "docs" / "measured" / f"{self.name}.json"

    @property
    def page(self) -> Path:
        return ROOT / self.place

    def read(self) -> Any:
        """The record."""
        return json.loads(self.record.read_text(encoding="utf-8"))

    def shown(self, record: object) -> str:
        """The page with this record's words between its comments."""
        begin, end = (f"<!-- {self.mark}: {edge} -->\n" for edge in ("begin", "end"))
        before, _, rest = self.page.read_text(encoding="utf-8").partition(begin)
        return before + begin + self.words(record) + end + rest.partition(end)[2]

    def is_shown(self) -> bool:
        """Whether the page says what the record says."""
        return self.shown(self.read()) == self.page.read_text(encoding="utf-8")

    def keep(self, record: object, path: Path | None = None) -> None:
        """Writes the record, by default into its own place, and with it the page. Another file leaves both alone."""
        path = path or self.record
        write_whole(path, (json_text(record, indent=1) + "\n").encode())
        if path.resolve() == self.record:
            write_whole(self.page, self.shown(self.read()).encode())

"""One trial in the test's own process, without worker groups."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from babeltune.schema.records import Report
from babeltune.sweep.state.messages import TrialAssignment
from babeltune.sweep.workers.run_trial import run


@dataclass
class Handover:
    """Hands reports to another thread and waits there for each verdict."""

    reports: queue.Queue[Report | BaseException | None]
    verdicts: queue.Queue[bool]
    closed: threading.Event

    def report(self, report: Report) -> bool:
        self.reports.put(report)
        return self.verdicts.get()

    def stopped(self) -> bool:
        return self.closed.is_set()

    def checkpoint_saved(self) -> None:
        """A checkpoint is on the disk; there is nothing more to do."""


def standalone(assignment: TrialAssignment, device: str = "cpu") -> Iterator[Report]:
    """The reports of a trial trained in this process, one at a time; closing the iterator stops the training."""
    handover = Handover(queue.Queue(), queue.Queue(), threading.Event())

    def work() -> None:
        try:
            run(assignment, handover, 0, 1, device)
            handover.reports.put(None)
        except BaseException as error:
            handover.reports.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (report := handover.reports.get()) is not None:
            if isinstance(report, BaseException):
                raise report
            yield report
            handover.verdicts.put(True)
    finally:
        handover.closed.set()
        handover.verdicts.put(False)
        thread.join()

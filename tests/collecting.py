"""What a trial reports to, in the tests' own process."""

from babeltune.files import plain


class Collect:
    """Keeps reports, and says when to stop: after a number of them, or between two.

    `dies_at`: the process ends once this many checkpoints between two reports are on the disk."""

    def __init__(self, most=100, stop_at=None, dies_at=None):
        self.reports, self.most = [], most
        self.looks, self.stop_at = 0, stop_at
        self.checkpoints, self.dies_at = 0, dies_at

    def report(self, report):
        self.reports.append(plain(report))
        return len(self.reports) < self.most

    def stopped(self):
        self.looks += 1
        return self.looks == self.stop_at

    def checkpoint_saved(self):
        self.checkpoints += 1
        if self.checkpoints == self.dies_at:
            raise KeyboardInterrupt

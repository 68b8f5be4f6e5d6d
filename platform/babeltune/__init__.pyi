from babeltune.api import SubmittedSweep as SubmittedSweep
from babeltune.api import TrialView as TrialView
from babeltune.api import load as load
from babeltune.api import report as report
from babeltune.api import runs as runs
from babeltune.api import submit as submit
from babeltune.api import trial as trial

__version__: str

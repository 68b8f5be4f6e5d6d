from babeltune.api import SubmittedSweep as SubmittedSweep
from babeltune.api import TrialView as TrialView
from babeltune.api import compare as compare
from babeltune.api import evaluate as evaluate
from babeltune.api import export as export
from babeltune.api import load as load
from babeltune.api import plan as plan
from babeltune.api import promote as promote
from babeltune.api import promote_front as promote_front
from babeltune.api import report as report
from babeltune.api import runs as runs
from babeltune.api import submit as submit
from babeltune.api import trial as trial

__version__: str

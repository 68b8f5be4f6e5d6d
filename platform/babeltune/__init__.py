"""babeltune: sweep the published ways to align a multilingual sentence encoder with a teacher.

`import babeltune as bt` gives notebooks and scripts `bt.plan`, `bt.submit`, `bt.runs`, `bt.trial`, `bt.report`,
`bt.promote`, `bt.evaluate`, `bt.compare`, `bt.export` and `bt.load` (see `api.py`). They are imported at their first
use: `import babeltune` itself loads nothing."""

import os
import sys
from importlib import import_module

__version__ = "0.2.0"

# `python -m babeltune.cli` looks first in the folder in which the user stands, where a `torch.py` may lie, and which
# others may be able to write. runpy has imported this package to find the module, and nothing else yet. The option may
# be written in many ways, such as `-mbabeltune.cli` and `-um babeltune.cli`.
_by_module = sys.argv[:1] == ["-m"] and any(f"{__name__}." in word for word in sys.orig_argv)
if _by_module and not sys.flags.safe_path:
    del sys.path[0]
# An empty part of PYTHONPATH means that folder, too, as in `PYTHONPATH=$PYTHONPATH:/lib` if none was set.
_parts = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if "" in _parts[1:] + _parts[:-1] and (_by_module or sys.argv[0].rpartition(os.sep)[2] == __name__):
    from pathlib import Path

    sys.path[:] = [part for part in sys.path if part in _parts or part not in ("", str(Path.cwd()))]

_OF_API = (
    *("SubmittedSweep", "TrialView"),
    *("plan", "submit", "runs", "trial", "report"),
    *("promote", "promote_front", "evaluate", "compare", "export", "load"),
)


def __getattr__(name: str) -> object:
    if name in _OF_API:
        return getattr(import_module("babeltune.api"), name)
    raise AttributeError(f"module 'babeltune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_OF_API])

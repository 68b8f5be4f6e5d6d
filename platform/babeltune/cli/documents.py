"""The output of each command with `--json`, as types, and the JSON Schema of each.

The reference and `babeltune schema COMMAND` show the schemas. They are derived from the records, whose docstrings they
carry. A test runs every command and holds its output against them."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import ConfigDict, RootModel

from babeltune.apps.filtering.filter import Filtered
from babeltune.apps.mining.mine import EncodeResult, MineResult, ScoreResult
from babeltune.apps.mining.retrieval import Retrieved
from babeltune.apps.mining.text_index import Indexed, SearchResult
from babeltune.apps.own_files.init import InitResult
from babeltune.apps.transfer.finetune import TransferRecord
from babeltune.cli.clean import Removed
from babeltune.cli.inspect import LanguageScores, LogOutput
from babeltune.cli.models import TrackingPage
from babeltune.cli.refit import WrittenSpec
from babeltune.cli.render import MethodDocument
from babeltune.cli.report import WrittenStudy
from babeltune.cli.run_here import Stopped
from babeltune.cli.serving import ServedModels
from babeltune.cli.sweeps import PauseTaken
from babeltune.cli.upkeep import Labelled
from babeltune.cli.watch import LivePageAddress
from babeltune.planning.plan import PlanReport
from babeltune.promotion.adapter import Adapted
from babeltune.promotion.canary import Fit
from babeltune.promotion.deletion import Deletion
from babeltune.promotion.drift import Drift
from babeltune.promotion.gates import Decision, Scores
from babeltune.promotion.ladder import Rung
from babeltune.promotion.push import Pushed
from babeltune.promotion.reproduce import Reproduction
from babeltune.promotion.small_table import Exported
from babeltune.promotion.sweep_scores import Comparison
from babeltune.remote.doctor import Finding
from babeltune.schema.json_schema import DIALECT
from babeltune.sweep.state.by_setting import BySetting
from babeltune.sweep.state.leaderboard import Row
from babeltune.sweep.state.overview import ListedSweep
from babeltune.sweep.state.progress import SweepDocument
from babeltune.sweep.state.seed_summary import SettingsTable
from babeltune.sweep.state.trial_page import TrialPage
from babeltune.sweep_report.write import Written


@dataclass(frozen=True, kw_only=True)
class Skill:
    """How a program or an agent runs a loop of sweeps."""

    path: str
    """The file: that of the package, or the one that was written."""
    text: str
    """Markdown, with a head in YAML as agents read it."""


DOCUMENTS: dict[str, Any] = {
    **dict.fromkeys(("submit", "demo", "resume", "extend"), SweepDocument),
    "status": SweepDocument | TrialPage,
    "show": SweepDocument | TrialPage,
    "init": InitResult,
    "plan": PlanReport,
    "refit": SweepDocument | WrittenSpec,
    "runs": list[ListedSweep] | list[Row] | list[LanguageScores] | SettingsTable | BySetting | TrialPage,
    "logs": LogOutput,
    "report": Written,
    "study": WrittenStudy,
    "stop": Stopped,
    "pause": PauseTaken,
    "continue": PauseTaken,
    **dict.fromkeys(("rename", "note", "archive"), Labelled),
    "delete": Deletion,
    "reproduce": Reproduction,
    "ui": TrackingPage,
    "watch": LivePageAddress,
    "serve": ServedModels,
    "methods": dict[str, str] | MethodDocument,
    "schema": dict[str, Any],
    "skill": Skill,
    "doctor": list[Finding],
    "clean": list[Removed],
    "promote": Decision | list[Rung],
    "evaluate": Scores,
    "compare": Comparison,
    "export": Exported,
    "adapter": Adapted,
    "push": Pushed,
    "transfer": TransferRecord,
    "canary": Fit,
    "check": Drift,
    "mine": MineResult,
    "score": ScoreResult,
    "retrieve": Retrieved,
    "encode": EncodeResult,
    "filter": Filtered,
    "index": Indexed,
    "search": SearchResult,
}
"""Command -> the type of its document. A command with several options may have several."""


@cache
def document_schema(command: str) -> dict[str, Any]:
    """The JSON Schema of what the command prints with `--json`. Further versions may add keys."""
    # pydantic looks here for what the records' modules import for type checkers alone
    from babeltune.planning.calibration import Estimate  # noqa: F401
    from babeltune.planning.sizes import NamedSize  # noqa: F401

    hint = DOCUMENTS[command]

    class Document(RootModel[hint]):  # type: ignore[valid-type]
        model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=True)

    schema = Document.model_json_schema(mode="serialization")
    return {"$schema": DIALECT, **schema, "title": f"babeltune {command} --json"}

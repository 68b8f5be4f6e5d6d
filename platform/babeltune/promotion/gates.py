"""The checks of a promotion: the logged numbers come out again, and the gates on the sealed tests hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from babeltune.data.prepared import TextTask
from babeltune.promotion.compare import Contest, Verdict
from babeltune.promotion.statistics import Selection
from babeltune.schema.records import Gate

TOLERANCE = 0.003  # a logged metric is reproduced when it comes out within this: the same weights agree to rounding

Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of promotion, and its numbers."""

    verdict: Verdict
    """`tie`: not shown to be better without a loss anywhere, or the same checkpoint. The champion's alias stays."""
    reasons: tuple[str, ...]
    sweep: str
    trial: str
    report: int
    folder: str = ""
    """The model's folder; empty when it was refused."""
    registered: str = ""
    """`models:/<name>@<alias>`, version included."""
    dev: Scores = field(default_factory=dict)
    test: Scores = field(default_factory=dict)
    untrained: Scores = field(default_factory=dict)
    chance: Scores = field(default_factory=dict)
    teacher: Scores = field(default_factory=dict)
    """Sealed scores of the raw teacher, in whatever language; empty if it could not be had."""
    baselines: dict[str, Scores] = field(default_factory=dict)
    """Sealed scores of the sweep's `baselines`, by their rows of the leaderboard."""
    contest: Contest | None = None
    """The contest with the champion, if there is one."""
    chosen_by: str = ""
    """The metric in which the trial is the best of its sweep: the first objective, or the aim of `--prefer`."""
    among: int = 1
    """How many trials it was chosen from: all that reported."""
    selection: Selection | None = None
    """The interval of its value in that metric, if the standard error is known."""
    members: tuple[str, ...] = ()
    """The checkpoints that the model's weights are the average of; empty for a single one."""
    openings: int = 0
    """How often the sealed tests have been opened, this time included."""

    @property
    def exit_code(self) -> int:
        """The exit code of `promote`: 3 after a refusal, which is no error."""
        return 3 if self.verdict == "refuse" else 0


def judge(
    logged: Mapping[str, float],
    reproduced: Mapping[str, float],
    gates: Sequence[Gate] = (),
    test: Mapping[str, float] | None = None,
    untrained: Mapping[str, float] | None = None,
    chance: Mapping[str, float] | None = None,
    contaminated: Mapping[str, str] | None = None,
) -> tuple[Literal["promote", "refuse"], tuple[str, ...]]:
    """The verdict and its reasons: every logged dev metric comes out again, and every gate holds. Decides only.

    A test that is `contaminated` (name -> why) cannot gate, so its gate does not hold."""
    test, untrained, chance = test or {}, untrained or {}, chance or {}
    broken = list[str]()
    for name, value in logged.items():
        # k-means may take another way where two vectors differ in their last digit: it varies between seeds.
        tolerance = TOLERANCE + logged.get(f"{name}_sd", 0.0)
        if not name.endswith("_sd") and not abs(value - reproduced.get(name, math.inf)) <= tolerance:  # or it is NaN
            exported = f"{reproduced[name]:.4f}" if name in reproduced else "nothing"
            broken.append(f"{name} was logged as {value:.4f} and the exported model gives {exported}")
    if broken:
        return "refuse", ("not reproduced by the exported folder: " + "; ".join(broken[:3]),)
    failed: list[str] = []
    passed = [f"{len(logged)} logged dev metrics reproduced by the exported folder{_farthest(logged, reproduced)}"]
    for gate in gates:
        names = [n for n in chance if n.startswith(f"test/{gate.test}/")]
        if not names:
            failed.append(f"gate {gate.test}: no such sealed test was scored")
        if gate.test in (contaminated or {}):
            failed.append(f"gate {gate.test} cannot be judged: {(contaminated or {})[gate.test]}")
            continue
        for name in names:
            guess, before = chance[name], untrained.get(name, 0.0)
            need = max(gate.times_chance * guess, gate.times_untrained * before)
            parts = f"{gate.times_chance:g} x chance {guess:.4f}, {gate.times_untrained:g} x untrained {before:.4f}"
            words = f"{name} is {test[name]:.4f}, needed {need:.4f} ({parts})"
            (passed if test[name] >= need else failed).append(words)
    return ("refuse", tuple(failed)) if failed else ("promote", tuple(passed))


def _farthest(logged: Mapping[str, float], reproduced: Mapping[str, float]) -> str:
    """Which metric differs most from its logged value, and why, if four decimals show it; else nothing."""
    name = max(logged, key=lambda each: abs(logged[each] - reproduced.get(each, logged[each])), default="")
    before, after = (f"{scores.get(name, 0.0):.4f}" for scores in (logged, reproduced))
    if before == after:
        return ""
    why = "other batches round sums otherwise; that may turn an answer between two almost equal cosines"
    return f"; {name} was logged as {before} and is {after} here: {why}"


def chance_of(tasks: Sequence[TextTask], prefix: str = "test") -> Scores:
    """The accuracy of guessing, 1/n, of every bitext subset."""
    return {f"{prefix}/{t.name}/{t.subset}/accuracy": 1 / len(t.left) for t in tasks if t.kind == "bitext"}

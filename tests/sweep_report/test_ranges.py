"""Values at an end of what was searched."""

from babeltune.schema.search import Parameter
from babeltune.sweep_report.gather import values_at_ends


def test_a_best_trial_at_the_end_of_a_range_is_named():
    parameters = {
        "weight": Parameter(log_float=(0.1, 10.0)),
        "margin": Parameter(float=(0.2, 0.8)),
        "middle": Parameter(float=(0.0, 1.0)),
        "width": Parameter(choice=(256, 512, 1024)),
        "either": Parameter(choice=(1, 2)),
        "kind": Parameter(choice=("a", "b", "c")),
        "absent": Parameter(int=(1, 9)),
    }
    values = {"weight": 0.102, "margin": 0.8, "middle": 0.5, "width": 1024, "either": 2, "kind": "a"}
    assert list(values_at_ends(parameters, values)) == [
        "weight 0.102 (of 0.1 to 10)",
        "margin 0.8 (of 0.2 to 0.8)",
        "width 1024 (of 256 to 1024)",
    ]

"""What a sweep may do and probably does not mean."""

import pytest

from babeltune.planning.sweep_file import read_sweep
from babeltune.planning.warnings import about_length


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["budget.unit=compute", "training.compute=5", "training.pairs=700"], True),
        (["training.pairs=700"], False),
    ],
)
def test_pairs_beside_compute_are_said_to_have_no_effect(tiny_file, given, said):
    found = list(about_length(read_sweep(tiny_file, assignments=given)))
    assert ["training.pairs 700 has no effect" in words for words in found] == [True] * said

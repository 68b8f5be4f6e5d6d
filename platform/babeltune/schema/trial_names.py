"""The name of a trial, such as `t0003`: from its number, and back."""

import re

TRIAL = re.compile(r"t\d+")


def trial_name(number: int) -> str:
    """The name of this trial, of its folder and of its row."""
    return f"t{number:04d}"


def trial_number(name: str) -> int:
    """The number of the trial of this name, or of the folder `t0003`."""
    return int(name.removeprefix("t"))


def is_trial_of_sweep(model: str) -> bool:
    """Whether a model is named as `SWEEP/t0003`."""
    _, slash, name = model.rpartition("/")
    return bool(slash and TRIAL.fullmatch(name))

"""The standard error of a dev metric, by the rows of the tasks behind it. Loads no model and no library for one."""

import re

from babeltune.data.prepared import Prepared
from babeltune.evaluation.distinct_rows import distinct_rows, tasks_behind
from babeltune.promotion.statistics import standard_error


def error_of(metric: str, value: float, prepared: Prepared) -> float | None:
    """The standard error of a dev metric with this value; None for a metric whose error is not known."""
    whole = re.sub(r"^dim\d+/", "", metric)  # the rows of cut vectors are those of whole ones
    return standard_error(whole, value, distinct_rows(tasks_behind(whole, prepared.tasks)))

"""No test depends on how fast the machine is: none sleeps and hopes, and none compares a time with a limit."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
WAITING = TESTS / "waiting.py"  # the only file that compares clocks
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
"""Functions of the module `time`; each has a sister in nanoseconds."""


def calls(node, names):
    """Whether the expression calls one of these functions of the module `time`."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "time"
        and each.func.attr.removesuffix("_ns") in names
        for each in ast.walk(node)
    )


def judges(statement):
    """Whether a statement is an assertion, or expects an exception."""
    return isinstance(statement, ast.Assert) or (
        isinstance(statement, ast.With) and any("raises" in ast.unparse(item) for item in statement.items)
    )


def durations(function):
    """The names that hold a clock's value plus or minus something: an elapsed time, or a deadline."""
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, (ast.Assign, ast.NamedExpr)) and isinstance(node.value, ast.BinOp)
        if calls(node.value, CLOCKS)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def hopes(tree):
    """The lines that sleep before an assertion, and those that compare a time with a limit."""
    for node in ast.walk(tree):
        for body in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for one, following in pairwise(body) if isinstance(body, list) else ():
                if isinstance(one, ast.Expr) and calls(one, {"sleep"}) and judges(following):
                    yield one.lineno
        if isinstance(node, ast.FunctionDef):
            timed = durations(node)
            for each in ast.walk(node):
                if isinstance(each, ast.Compare):
                    sides = [each.left, *each.comparators]
                    measured = any(isinstance(part, ast.BinOp) and calls(part, CLOCKS) for part in ast.walk(each))
                    names = {side.id for side in sides if isinstance(side, ast.Name)} & timed
                    if measured or names:
                        yield each.lineno


def test_no_test_sleeps_before_an_assertion_or_compares_a_time_with_a_limit():
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py")) if path != WAITING}
    places = {
        f"{path.relative_to(TESTS)}:{line}"
        for path, text in texts.items()
        if "time." in text
        for line in hopes(ast.parse(text))
    }
    assert not places, f"wait for the event with `waiting.wait_until`: {', '.join(sorted(places))}"


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (True, "time.sleep(0.3)\n    assert done"),
        (True, "time.sleep(PAUSE)\n    with pytest.raises(ValueError):\n        check()"),
        (True, "start = time.monotonic()\n    work()\n    assert time.monotonic() - start < 5"),
        (True, "took = time.perf_counter() - start\n    assert took < 1"),
        (True, "end = time.monotonic() + 60\n    while not done and time.monotonic() < end:\n        look()"),
        (False, "time.sleep(0.3)\n    server.start()\n    assert done"),
        (False, "began = time.time()\n    work()\n    now = time.time()\n    assert began <= written <= now"),
        (False, "wait_until(lambda: done)\n    assert done"),
    ],
)
def test_a_sleep_that_hopes_and_a_limit_on_time_are_found(refused, text):
    assert bool(list(hopes(ast.parse(f"def test_it():\n    {text}\n")))) == refused

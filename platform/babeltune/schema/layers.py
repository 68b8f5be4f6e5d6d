"""`student.keep_layers`: how a file says which layers of a named model stay."""

import itertools
import re

LayerChoice = int | str | tuple[int, ...]
CHOICES = (
    "a number of layers (4, `first 4`, `last 4`) or two or more rising layer numbers ([0, 4, 8, 11]; in a choice the "
    "words `0 4 8 11`)"
)
FORM = re.compile(r"(first|last) [1-9][0-9]*|[0-9]+( [0-9]+)+")
"""The words of a choice."""


def as_words(choice: LayerChoice) -> int | str:
    """The choice with a list as words, so that a search can name it."""
    return choice if isinstance(choice, int | str) else " ".join(map(str, choice))


def is_layer_choice(choice: LayerChoice) -> bool:
    """Whether the choice is one of `CHOICES`, of whatever model."""
    words = as_words(choice)
    if isinstance(words, int):
        return words >= 1
    if FORM.fullmatch(words) is None:
        return False
    numbers = [int(word) for word in words.split() if word.isdigit()]
    return all(low < high for low, high in itertools.pairwise(numbers))


def layer_numbers(choice: LayerChoice, layers: int) -> tuple[int, ...]:
    """The numbers of the kept layers, of a model that has `layers`. A mere count spreads evenly, from the first to the
    last."""
    words = as_words(choice)
    if isinstance(words, int):
        steps = max(words - 1, 1)
        return tuple((2 * place * (layers - 1) + steps) // (2 * steps) for place in range(words))
    word, *rest = words.split()
    if word == "first":
        return tuple(range(int(rest[0])))
    if word == "last":
        return tuple(range(layers - int(rest[0]), layers))
    return tuple(map(int, words.split()))


def layers_problem(choice: LayerChoice, layers: int, model: str | None) -> str | None:
    """Why a model with `layers` layers cannot keep these; None if it can."""
    numbers = layer_numbers(choice, layers)
    if len(set(numbers)) == len(numbers) and numbers[0] >= 0 and numbers[-1] < layers:
        return None
    return f"{choice!r}: {model!r} has {layers} layers, numbered from 0 to {layers - 1}; keep some of these"

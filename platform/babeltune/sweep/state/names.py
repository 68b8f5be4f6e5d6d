"""Which of several sweeps a name means, for everything that takes one: an id, a name, or the beginning of an id."""

import functools
import logging
from collections.abc import Mapping, Sequence

from babeltune.errors import UnknownNameError, plural

log = logging.getLogger(__name__)

MOST_NAMED = 5  # sweeps that a message lists


def name_of(sweep: str) -> str:
    """The name in a sweep's id."""
    return sweep.rpartition("-")[0]


def meant(name: str, names: Mapping[str, str]) -> str | None:
    """The id that the name means; None if it fits none. Case decides only between two. `names` has the name of each id
    (`name_of`, unless the sweep was renamed), the latest first.

    Of several sweeps with this name it is the latest, and a beginning must fit one alone. What was taken for another
    word is logged. Raises `UnknownNameError` that lists the sweeps that a beginning fits."""
    for spelled in (str, str.lower):
        word = spelled(name)
        whole = [each for each, called in names.items() if word in (spelled(each), spelled(called))]
        begun = [each for each in names if word and spelled(each).startswith(word)]
        if whole or len(begun) == 1:
            fitting = whole or begun
            if fitting[0] != name:
                _say(name, fitting[0], tuple(fitting[1:]), alike=names[fitting[0]] == name)
            return fitting[0]
        if begun:
            raise UnknownNameError(
                f"{name!r} begins {plural(len(begun), 'sweep')}: {_list_words(begun)}; write more of it"
            )
    return None


def _list_words(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
    return ", ".join(ids[:MOST_NAMED]) + more


@functools.cache
def _say(name: str, choice: str, others: tuple[str, ...], *, alike: bool) -> None:
    """Once in a process: a command may look its sweep up twice. A name that one sweep has is as good as its id."""
    if others:
        rest = _list_words(others)
        log.warning(f"{name!r} fits {len(others) + 1} sweeps; this is the latest, {choice}; the others: {rest}")
    elif not alike:
        log.warning(f"{name!r} is taken for {choice}")

"""What a driver's process does with memory that lies about."""

import gc
import weakref

from babeltune.memory import passed_over


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.itself = self


def test_what_is_there_at_the_beginning_is_looked_at_again_after_the_block_only():
    gc.collect()
    node = Node()
    old = weakref.ref(node)
    with passed_over() as pass_over:
        del node
        young = weakref.ref(Node())
        gc.collect()
        assert young() is None
        assert old() is not None
        middle = Node()
        newer = weakref.ref(Node())
        pass_over()
        assert newer() is None, "what is garbage by then is collected first"
        reference = weakref.ref(middle)
        del middle
        gc.collect()
        assert reference() is not None
    gc.collect()
    assert old() is reference() is None

"""The guard of what tests leave, tried with descriptors, garbage and levels that are left."""

from __future__ import annotations

import gc
import logging
import os
import weakref

from tests.lab.leftovers import MOST_LEFT, Leftovers


def test_descriptors_that_are_left_are_counted() -> None:
    watched = Leftovers()
    assert watched.complaint() is None
    left = [descriptor for _ in range(MOST_LEFT // 2 + 1) for descriptor in os.pipe()]
    try:
        complaint = watched.complaint()
        assert complaint is not None
        assert "'pipe'" in complaint
        assert watched.complaint() is None, "a module that follows has left nothing"
    finally:
        for descriptor in left:
            os.close(descriptor)
    assert watched.complaint() is None


def test_garbage_that_was_exempted_is_collected() -> None:
    class Circle:
        def __init__(self) -> None:
            self.own = self

    watched = Leftovers()
    watched.collect()
    gone = weakref.ref(Circle())
    gc.freeze()
    assert gone() is not None
    watched.collect()
    assert gone() is None


def test_levels_of_loggers_are_restored() -> None:
    named = logging.getLogger("smbdirect.providers")
    before = logging.root.level, named.level
    watched = Leftovers()
    new = logging.getLogger("smb3server.made_by_a_test")
    for logger in (logging.root, named, new):
        logger.setLevel(logging.DEBUG)
    watched.restore_levels()
    assert (logging.root.level, named.level, new.level) == (*before, logging.NOTSET)

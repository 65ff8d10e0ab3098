"""Captures with one fault each: messages of real sessions (``pcaps/``), in which exactly one rule is broken.

Reading order: ``table`` (a fault per rule) -> ``over_tcp``, ``over_iwarp``, ``over_roce`` (how a session becomes frames
again) -> ``faults_*`` (the faults).
"""

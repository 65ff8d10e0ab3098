"""The MS-SMBD state machine, both roles. No I/O, no clock, no randomness: it is fed bytes and times, and hands out
events and Sends.

Reading order: ``constants``, ``settings`` -> ``messages`` -> ``events`` -> ``credits`` -> ``reassembly`` ->
``connection``.
"""

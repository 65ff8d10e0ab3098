"""The state machine of SMB Direct: no I/O, no clock, no randomness. [MS-SMBD 3.1]

Negotiation, credits and fragments belong here. Memory, work requests and time do not: ``transport`` provides them.

Reading order: ``constants`` -> ``messages`` (layouts and events) -> ``settings`` (the initial values) -> ``credits`` ->
``reassembly`` -> ``short_calls`` and ``short`` (the short way of whole messages) -> ``connection``.
"""

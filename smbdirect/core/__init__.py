"""The state machine of SMB Direct (MS-SMBD 3.1): no I/O, no clock, no randomness.

Belongs here: negotiation, credits, fragments. Not here: memory, work requests and time, which ``transport`` provides.

Reading order: ``constants`` -> ``messages`` (layouts) -> ``settings`` (what is negotiated) -> ``credits`` ->
``reassembly`` -> ``events`` (what comes out) -> ``connection``.
"""

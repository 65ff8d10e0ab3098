"""``python -m tools.bench.quick`` (``make bench-quick``): find regressions in what operations cost, in three minutes.

Calls and system calls per operation are exact and the same on every machine, and are judged strictly. Processor time is
not; it is compared with that of a loop in the same seconds, with a wide bound. `counted` is the server that counts its
calls, `measure` measures, `record` keeps and compares; record.json is what is compared with.
"""

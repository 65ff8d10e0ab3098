"""``python -m tools.bench.quick`` (``make bench-quick``): tell in under three minutes which operations became dearer.

Calls and system calls per operation are exact and the same on every machine, and are judged strictly. Processor time is
not; it is compared with that of a loop in the same seconds, with a wide bound. `counted` is the server that counts its
calls, `measure` measures, `record` keeps and compares; record.json is what is compared with.
"""

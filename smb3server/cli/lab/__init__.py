"""Commands of the lab.

Reading order: ``pcap`` (captures) -> ``proxy`` -> ``selfcheck`` (a NIC) -> ``bench`` -> ``conformance``.
"""

"""The network of this machine: the TCP transport, and which addresses, ports and devices there are.

Reading order: ``host`` and ``host_lists`` -> ``link_events`` -> ``interfaces`` (what clients learn) -> ``tcp``
(messages over a socket) -> ``listener`` -> ``fabric_choice`` (which fabric serves which address).
"""

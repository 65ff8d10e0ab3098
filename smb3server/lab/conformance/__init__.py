"""Test an SMB Direct server rule by rule, with a client that can break every rule.

Reading order: ``verdict`` (what a case can say) -> ``target`` (the server under test and its timers) -> ``own`` (a
server of ours as the target) -> ``peer`` (one RDMA connection on which anything may be sent) -> ``conversation`` (whole
messages over a peer) -> ``data_channel`` (READ and WRITE by RDMA) -> ``transforms`` and ``protected`` (signed and
encrypted data by RDMA) -> ``observed`` (rules about everything that a server sends) -> ``trial`` (what a case is given)
-> ``registry`` (the cases by name) -> ``cases`` -> ``runner`` (many at once) -> ``report`` -> ``run`` (the command).
"""

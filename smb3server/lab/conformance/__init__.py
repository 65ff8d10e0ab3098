"""Test an SMB Direct server rule by rule, with a client that can break every rule.

Reading order: ``verdict`` (what a case can say) -> ``target`` (the server under test and its timers) -> ``peer`` (one
RDMA connection on which anything may be sent) -> ``conversation`` (whole messages over a peer) -> ``trial`` (what a
case is given) -> ``registry`` (the cases) -> ``cases`` -> ``runner`` -> ``report``. ``own`` starts a server of ours.
"""

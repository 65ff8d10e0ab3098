"""``smb3server bench``: measure our server and Samba on the same machine, in turns, with the same client.

Or measure any server that runs already. docs/performance.md says what the columns mean.

Reading order: ``cases`` (their names and options) -> ``errors`` (how a run ends early) -> ``accounting`` (processor
time from /proc) -> ``figures`` (rounds turned into medians and verdicts) -> ``load`` (the requests of one connection)
and ``rdma_client`` (the client over SMB Direct) -> ``client`` (builds labgen.c, the client over TCP, and drives one
server) -> ``servers`` (ours, Samba, impacket) -> ``idle`` (what idle connections cost) -> ``interpreter`` (the Python
that ours runs on) and ``machine`` (load, file systems) -> ``page`` (writes the tables) -> ``foreign`` (a run against a
server that is there already) -> ``command`` (a whole run).
"""

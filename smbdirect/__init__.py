"""SMB Direct (MS-SMBD) over pluggable RDMA providers.

Reading order: ``errors``; ``codec`` (how a wire layout is declared); ``life`` (the states of a connection);
``message_transport`` (the interface that the SMB server above uses, the same for TCP and SMB Direct); ``core`` (the
state machine, without I/O, clock and randomness); ``providers.base`` (the contract of RDMA providers); ``transport``
(the asyncio code that joins them: memory, chains of work requests, listening and connecting). Two modules stand beside
them: ``unauthenticated`` (limits of peers without a logon) and ``tcp_info`` (what the kernel reports about a TCP
connection).
"""

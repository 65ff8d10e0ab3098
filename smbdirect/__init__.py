"""SMB Direct (MS-SMBD) over pluggable RDMA providers.

Reading order: ``errors`` -> ``fields`` and ``codec`` (how a wire layout is declared) -> ``life`` (the states of a
connection) -> ``native`` (which modules in C are in use) -> ``tcp_info`` (what the kernel reports about a TCP
connection) -> ``unauthenticated`` (limits of peers without a logon) -> ``message_transport`` (the interface that the
SMB server above uses, the same for TCP and SMB Direct) -> ``tapping`` (shows messages to a trace) -> ``core`` (the
state machine, without I/O, clock and randomness) -> ``providers`` (RDMA; ``providers.base`` is the contract) ->
``rdma`` (memory, chains of work requests, transfers, and the API for programs) -> ``transport`` (SMB Direct on asyncio:
messages, listening and connecting).
"""

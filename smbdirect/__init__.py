"""SMB Direct (MS-SMBD) over pluggable RDMA providers.

Reading order: ``errors``; ``codec`` (how a wire layout is declared); ``life`` (the states of a connection);
``message_transport`` (the seam that the SMB server above sees, the same for TCP and SMB Direct); ``core`` (the state
machine, free of I/O, clock and randomness); ``providers.base`` (what an RDMA provider must keep); ``transport`` (the
asyncio code that joins them: memory, chains of work requests, listening and connecting). Beside them stand
``unauthenticated`` (how much peers without a logon may have) and ``tcp_info`` (what the kernel says of a connection).
"""

"""SMB Direct (MS-SMBD) over pluggable RDMA providers.

Reading order: ``constants`` and ``errors``; ``codec`` (how a wire layout is declared) and ``messages``;
``events``, ``credits``, ``reassembly`` and ``connection`` (the state machine, free of I/O, clock and randomness);
``providers.base`` (what an RDMA provider must keep), ``buffers``, ``work_queue`` and ``rdma`` (memory, and chains of
work requests), ``pump`` (the asyncio code that joins them) and ``transport`` (listening and connecting).
``message_transport`` is the seam that the SMB server above sees, the same for TCP and SMB Direct.
"""

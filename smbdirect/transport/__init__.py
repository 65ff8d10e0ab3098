"""SMB Direct on asyncio: completions in, one chain of work requests out per batch.

Reading order: ``pool`` and ``registrations`` (memory) -> ``receives`` -> ``work_queue`` (the send queue) -> ``rdma``
(RDMA Read and Write) -> ``smb_direct`` (the transport) -> ``listen``.
"""

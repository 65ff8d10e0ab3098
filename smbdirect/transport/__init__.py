"""SMB Direct over a provider's queue pair, on asyncio.

Memory, chains of work requests, RDMA Reads and Writes, and listening belong here. The rules of MS-SMBD (``core``) and
the individual fabrics (``providers``) do not.

Reading order: ``pool`` (buffers) -> ``registrations`` and ``receives`` -> ``work_queue`` -> ``rdma`` (data of the upper
layer) -> ``smb_direct`` (the transport) -> ``listen`` (listening and connecting).
"""

"""SMB Direct over a provider's queue pair, on asyncio.

Belongs here: memory, chains of work requests, RDMA Reads and Writes, listening. Not here: the rules of MS-SMBD
(``core``) and single fabrics (``providers``).

Reading order: ``pool`` (buffers) -> ``registrations`` and ``receives`` -> ``work_queue`` -> ``rdma`` (data of the upper
layer) -> ``smb_direct`` (the transport) -> ``listen`` (listening and connecting).
"""

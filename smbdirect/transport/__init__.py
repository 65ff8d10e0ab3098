"""SMB Direct over a provider's queue pair, on asyncio.

Messages, data of the upper layer, and listening belong here. The rules of MS-SMBD (``core``), the individual fabrics
(``providers``), and what any program on RDMA needs (``smbdirect.rdma``) do not.

Reading order: ``rdma`` (data of the upper layer) -> ``smb_direct`` (the transport) -> ``listen`` (listening and
connecting).
"""

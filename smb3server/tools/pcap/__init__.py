"""Read and judge captures of SMB Direct and direct-TCP SMB sessions.

Reading order, bottom up: ``capture`` (pcap and pcapng files) -> ``packets`` (IP, TCP, UDP) -> ``tcp`` (reassembly) ->
``iwarp``, ``roce`` or ``direct_tcp`` (messages of the fabric, ``rdma``) -> ``smbdirect`` (MS-SMBD) -> ``smb2`` (headers
and channel descriptors). ``session`` puts them together; ``replay`` compares, ``rewrite`` converts, ``command`` prints.

All modules are written from the specifications and share no code with the packages that they judge, except ``replay``:
it drives the project's own codecs and state machines from a capture.
"""

"""Reader and judge of captures that hold SMB Direct or direct-TCP SMB sessions.

Reading order, bottom up: ``capture`` (pcap and pcapng files) -> ``packets`` (IP, TCP, UDP) -> ``tcp`` (reassembly) ->
``iwarp``, ``roce`` or ``direct_tcp`` (messages of the fabric, ``rdma``) -> ``smbdirect`` (MS-SMBD) -> ``smb2`` (headers
and channel descriptors) -> ``verdicts``. ``session`` puts them together; ``command`` prints.

Everything here is written from the specifications and shares no code with the packages it judges; ``replay`` is the
one module that drives the project's own codecs and state machines from a capture.
"""

"""Transports, addresses and devices of this machine.

Belongs here: direct TCP, listening, interfaces and RDMA devices of the host. Not here: SMB Direct itself
(``smbdirect``) and what the bytes mean.

Reading order: ``tcp`` (a ``MessageTransport`` over TCP) -> ``listener`` -> ``host_lists`` (which hosts may connect) ->
``interfaces`` and ``link_events`` (addresses that clients are offered) -> ``host`` and ``fabric_choice`` (which RDMA
fabrics this machine can serve, and why not; why one client does not use them: ``status.rdma_reasons``).
"""

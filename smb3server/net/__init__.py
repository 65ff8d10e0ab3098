"""Transports, addresses and devices of this machine.

Direct TCP, listening, and the interfaces and RDMA devices of the host belong here. SMB Direct itself (``smbdirect``)
and the meaning of the messages do not.

Reading order: ``framing`` (messages in a stream of bytes) -> ``arrived`` (data that goes from the socket to a file) ->
``tcp`` (a ``message_transport.MessageTransport`` over TCP) -> ``door`` (accepts connections) -> ``listener`` ->
``quic`` (SMB over QUIC) ->
``http`` (HTTP for unauthenticated clients) -> ``host_lists`` (which hosts may connect) -> ``interfaces`` and
``link_events`` (addresses that clients are offered) -> ``host`` and ``fabric_choice`` (which RDMA fabrics this machine
can serve, and why not; why one client does not use them: ``status.rdma_reasons``) -> ``store_url`` and
``store_access`` (the address of a cluster's store; credentials and secret for it, from files).
"""

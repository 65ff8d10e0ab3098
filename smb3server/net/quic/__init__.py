"""SMB over QUIC: one bidirectional stream carries the messages of ``net.framing``. [MS-SMB2 2.1]

The extra ``quic`` brings the library, aioquic. Only who serves or asks for QUIC loads this folder.

Reading order: ``connection`` (what is changed of the library) -> ``transport`` (a
``message_transport.MessageTransport`` over QUIC) -> ``certificates`` (the server's, and whose count) -> ``listener``
-> ``client``.
"""

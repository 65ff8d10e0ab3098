"""SMB over QUIC: one bidirectional stream carries the messages of ``net.framing``. [MS-SMB2 2.1]

The extra ``smb3server[quic]`` has the library (aioquic). Only who serves or asks for QUIC loads this folder.
"""

"""Tools for users besides the server: commands of ``smb3server`` that judge captures, carry clients, check and measure.

Reading order: ``pcap`` (what a capture shows, and what is wrong with it) -> ``proxy`` (direct TCP carried over SMB
Direct) -> ``content`` (data of which each byte is seen to move) -> ``selfcheck`` (whether a NIC keeps the providers'
contract) -> ``bench`` (our server against Samba) -> ``conformance`` (an SMB Direct server, rule by rule).
"""

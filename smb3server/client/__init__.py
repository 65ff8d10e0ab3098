"""A small SMB 2/3 client over any ``MessageTransport``: enough to log on, bind channels and ask questions.

``connection`` is one transport with its negotiation, credits and signatures; ``session`` the logon, its channels and
tree connects. It speaks to any server; it is what ``smb3server doctor`` uses.
"""

from smb3server.client.connection import Offer, RequestFailed, SmbConnection, connect_tcp
from smb3server.client.session import ClientSession

__all__ = ["ClientSession", "Offer", "RequestFailed", "SmbConnection", "connect_tcp"]

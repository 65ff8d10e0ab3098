"""RoCEv2 (InfiniBand RC over UDP, IBTA Annex A17) in user space.

Reading order: ``headers``, ``icrc`` (wire format); ``retry``, ``requester``, ``responder``, ``queue_pair`` (one
reliable connection, without I/O or clock); ``cm_messages`` and ``cm`` (connection management on QP1,
likewise); ``sockets``; ``endpoint``; ``provider``.
"""

from smbdirect.providers.roce.provider import RoceProvider

__all__ = ["RoceProvider"]

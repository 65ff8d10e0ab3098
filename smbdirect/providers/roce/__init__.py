"""RoCEv2 (InfiniBand RC over UDP) in user space. [IBTA Annex A17]

Reading order: ``headers``, ``icrc``, ``batch_calls``, ``batches`` (wire format); ``arrival`` (what comes out of a
socket); ``retry``, ``requester``, ``responder``, ``queue_pair`` (one reliable connection, without I/O or clock);
``cm_messages`` and ``cm`` (connection management on QP1, also without them); ``sockets``, ``path`` (packets in and
out); ``endpoint``; ``provider``.
"""

from smbdirect.providers.roce.provider import RoceProvider

__all__ = ["RoceProvider"]

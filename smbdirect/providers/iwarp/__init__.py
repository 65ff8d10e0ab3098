"""Software iWARP: MPA (RFC 5044/6581), DDP (RFC 5041), RDMAP (RFC 5040) over TCP, in user space.

Reading order: ``mpa``, ``ddp``, ``rdmap`` (wire formats), ``frame_calls`` (many FPDUs at once; ``frames`` has the same
in C), ``operations``, ``layout``, ``receiver`` and ``sender`` (the two halves of a stream, without I/O),
``endpoint`` (the socket pump), ``provider`` (listening, connecting, MPA set-up). ``linger`` ends TCP connections.
"""

from smbdirect.providers.iwarp.provider import IwarpProvider

__all__ = ["IwarpProvider"]

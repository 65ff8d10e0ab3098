"""The functions of ``frame_calls``, in C where that is built."""

from smbdirect import native

if native.available("smbdirect.providers.iwarp._native"):
    from smbdirect.providers.iwarp._native import frame, sends
else:
    from smbdirect.providers.iwarp.frame_calls import frame, sends

__all__ = ["frame", "sends"]

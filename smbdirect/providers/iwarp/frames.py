"""The functions of ``frame_calls``, in C where that is built."""

from smbdirect import native

if native.available("smbdirect.providers.iwarp._native"):
    from smbdirect.providers.iwarp._native import arrived, cut, follow, run
else:
    from smbdirect.providers.iwarp.frame_calls import arrived, cut, follow, run

__all__ = ["arrived", "cut", "follow", "run"]

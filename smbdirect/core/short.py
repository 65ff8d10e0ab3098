"""The functions of ``short_calls``, in C where that is built."""

from smbdirect import native

if native.available("smbdirect.core._native"):
    from smbdirect.core._native import accepted, whole
else:
    from smbdirect.core.short_calls import accepted, whole

__all__ = ["accepted", "whole"]

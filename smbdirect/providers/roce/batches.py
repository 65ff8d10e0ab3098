"""The functions of ``batch_calls``, in C where that is built and the processor multiplies without carries."""

from smbdirect import native

if native.available("smbdirect.providers.roce._native"):
    from smbdirect.providers.roce._native import intact, place, seal, similar
else:
    from smbdirect.providers.roce.batch_calls import intact, place, seal, similar

__all__ = ["intact", "place", "seal", "similar"]

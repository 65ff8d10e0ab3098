"""The functions of ``batch_calls``, in C where that is built and the processor multiplies without carries."""

from smbdirect import native

if native.available("smbdirect.providers.roce._native"):
    from smbdirect.providers.roce._native import follow, intact, launch, place, seal, similar, take
else:
    from smbdirect.providers.roce.batch_calls import follow, intact, launch, place, seal, similar, take

__all__ = ["follow", "intact", "launch", "place", "seal", "similar", "take"]

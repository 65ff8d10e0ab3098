"""The functions of ``chain_calls``, in C where that is built."""

from smbdirect import native

if native.available("smbdirect.rdma._native"):
    from smbdirect.rdma._native import chain, transfer
else:
    from smbdirect.rdma.chain_calls import chain, transfer

__all__ = ["chain", "transfer"]

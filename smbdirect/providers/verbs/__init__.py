"""The kernel's RDMA devices (real NICs, rdma_rxe, siw) through libibverbs and librdmacm, by ctypes (no compiler).

Reading order: ``abi`` (the binary interface of the libraries), ``device`` (all differences between devices), ``memory``
(registrations), ``thread`` (the only one that writes to the devices), ``events``, ``endpoint`` (one queue pair),
``provider`` (listening and connecting).
"""

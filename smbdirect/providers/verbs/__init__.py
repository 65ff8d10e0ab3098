"""The kernel's RDMA devices (real NICs, rdma_rxe, siw) through libibverbs and librdmacm, by ctypes (no compiler).

Reading order: ``abi`` (what the libraries' headers say), ``device`` (everything that differs between devices),
``memory`` (registrations), ``thread`` (which alone writes to the devices), ``events``, ``endpoint`` (one queue pair),
``provider`` (listening and connecting).
"""

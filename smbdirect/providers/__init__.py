"""RDMA providers: each of them implements the contract in ``base``.

Reading order: ``base`` -> ``memory`` (registered memory in user space) -> ``loopback`` (the shortest implementation,
within one process) -> ``iwarp`` -> ``roce`` -> ``verbs`` (the kernel's devices) -> ``make`` (a provider by the name of
its fabric).
"""

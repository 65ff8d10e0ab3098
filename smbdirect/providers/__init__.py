"""RDMA providers: each keeps the contract of ``base``.

Reading order: ``base`` -> ``memory`` and ``local_domain`` (registered memory in user space) -> ``loopback`` (the
contract at its shortest, in one process) -> ``iwarp`` -> ``roce`` -> ``verbs`` (the kernel's devices).
"""

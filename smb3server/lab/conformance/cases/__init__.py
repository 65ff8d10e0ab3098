"""The cases, one module per suite. ``registry.load`` imports them all.

Reading order:

- MS-SMBD: ``negotiate``, ``credits`` and ``data_transfer`` (Microsoft's suites), ``further_negotiate``,
  ``further_transfer`` and ``sent`` (what these suites do not try);
- data by RDMA: ``rdma_channel``, ``rdma_invalidation`` and ``rdma_multichannel`` (Microsoft's), ``rdma_rules``;
- RDMA transforms: ``rdma_encryption`` and ``rdma_signing`` (Microsoft's), ``rdma_transform_negotiation``,
  ``rdma_transform_rules``.
"""

"""Receives messages, calls command handlers and sends replies. [MS-SMB2 3.3.5.2, 3.3.4.1]

Belongs here: everything that all commands have in common, from the first byte to the reply. Not here: what a single
command does.

Reading order: ``request`` (parameter and result of a handler) -> ``chain`` (a compound in progress) -> ``checks`` and
``lookup`` (3.3.5.2) -> ``dispatcher``, with ``unwrapping`` (encrypted and compressed messages), ``holding`` (replies
that wait until something is stored) and ``denials`` -> ``fast_lane`` with ``short_forms`` (the most frequent
messages, without the objects of the general path), ``fetch`` (those of them that wait for data by RDMA) and
``look_lane`` (looks at a file in one message) -> ``reply`` (credits, signature, encryption) -> ``pending`` and
``waiting`` (requests that cannot be answered yet) -> ``in_turn`` (requests for slow storage) -> ``parking`` (chains
that wait for their turn) -> ``data_channel`` and ``rdma_transforms`` (data by RDMA, and its protection) ->
``long_work``, ``reserving`` and ``stable_storage`` (work on threads) -> ``flow_limits`` (waits of storage QoS) ->
``read_size``, ``errno_status``, ``measuring`` (how long requests take) and ``watchdog``.
"""

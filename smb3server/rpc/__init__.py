"""Named pipes and DCE/RPC services on them.

Reading order: ``dcerpc`` (calls) -> ``security`` and ``association`` (protected calls) -> ``tcp`` -> ``ndr`` and
``handles`` -> ``endpoint_mapper`` -> the services ``srvsvc``, ``wkssvc``, ``lsarpc``, ``samr`` -> ``pipes`` (the
services behind names of IPC$).
"""

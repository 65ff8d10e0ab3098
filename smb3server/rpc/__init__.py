"""DCE/RPC over named pipes and TCP, and the services that clients expect of a file server. [MS-RPCE]

Belongs here: PDUs, binds, their protection, and the interfaces; ``interface`` at the end of a service's module has its
calls by number. Not here: the Witness service (``witness``) and pipes as files (``commands``).

Reading order: ``dcerpc`` (PDUs and calls) -> ``security`` (protected calls) -> ``association`` -> ``tcp`` and
``endpoint_mapper`` -> ``ndr`` (structures and handles) -> ``srvsvc_lists``, ``srvsvc_shares``, ``srvsvc_names`` and
``srvsvc`` (sessions and shares) -> ``wkssvc`` and ``netdfs`` (namespaces) -> ``lsa_structures``, ``privileges``,
``lsa_privileges`` and ``lsarpc`` (names, SIDs and privileges), ``dssetup``, ``lsacap`` (ids of central access policies)
-> ``samr`` with ``samr_context``, ``samr_domains``, ``samr_aliases``, ``samr_users`` and ``samr_passwords`` ->
``fsrvp`` (shadow copies) -> ``rights``, ``services`` and ``svcctl`` (what runs), ``registry`` and ``winreg``,
``eventlog`` -> ``pipes`` (the services of each pipe).
"""

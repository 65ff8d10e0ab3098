"""Membership in a domain of Active Directory: who its users are, what proves it, and which ids they have on this host.

Belongs here: what a controller or a ticket says about a user, and asking controllers. Not here: the accounts of this
server (``auth``), and what a user may do (``access``). Loaded only if the configuration has ``[domain]``.

Reading order: ``user`` (what is known of a logged-on user, and the ports between the two halves of this room) ->
``validation`` (the structure in which a controller says it) -> ``serialized`` -> ``claim_sets`` -> ``pac`` (the same
structure inside a ticket, with claims, and its signatures) -> ``ids`` (ids of the host, computed) -> ``ldap_client``
-> ``kerberos`` -> ``ldap_questions`` -> ``stored_ids`` (ids that the directory stores) -> ``central_policies`` ->
``names`` (names and SIDs by a controller) -> ``questions`` (asking without waiting) -> ``directory`` (the directory
of a member server) -> ``sites`` (which controllers are near) -> ``controllers`` (which, in which order) ->
``rpc_client`` (calls, in the clear or sealed) -> ``secure_channel`` (the seals of Netlogon) -> ``netlogon_calls`` ->
``netlogon`` (who has made an NTLM response, with the next controller if one is silent). The machine account:
``keytab`` -> ``machine`` (its files and its password) -> ``member`` (both in a running server) -> ``join``.
"""

"""Authentication of clients: SPNEGO with NTLMv2 and Kerberos, accounts and their SIDs.

Belongs here: security tokens, users, and the limits on guessing passwords. Not here: what a user may do (``access``)
and keys for messages (``crypto``).

Reading order: ``users`` (accounts and Kerberos principals) -> ``password_rules``, ``users_file`` and ``sam_passwords``
-> ``groups`` -> ``directory`` (the port for users, SIDs and logons) -> ``accounts`` (which
implements it for this server) -> ``spnego_tokens`` and ``ntlm_messages`` (layouts) -> ``ntlm_protection``
(keys and signatures) -> ``guessing`` (failed logons) -> ``ntlm_logon`` -> ``exchange`` (SPNEGO) -> ``pyspnego`` (the
acceptor of tickets) and ``tickets`` (what GSS-API does not check) -> ``acceptor`` (one authentication).
"""

"""Authentication of clients: SPNEGO with NTLMv2 and Kerberos, accounts and their SIDs.

Belongs here: security tokens, users, and the limits on guessing passwords. Not here: what a user may do (``access``)
and keys for messages (``crypto``).

Reading order: ``users`` (accounts and Kerberos principals) -> ``password_rules``, ``users_file`` and ``sam_passwords``
-> ``groups`` -> ``directory`` (the port for users, SIDs and logons) -> ``accounts`` (which
implements it for this server) -> ``spnego_tokens`` and ``ntlm_messages`` (layouts) -> ``pyspnego`` (all uses of that
library's private parts) -> ``guessing`` (failed logons) -> ``ntlm_logon`` -> ``exchange`` (SPNEGO) -> ``tickets`` (what
GSS-API does not check) -> ``acceptor`` (one authentication).
"""

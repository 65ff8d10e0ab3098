"""Who somebody is: SPNEGO, NTLMv2, Kerberos, and the accounts.

Reading order: ``users`` and ``accounts`` (who there is) -> ``spnego_tokens`` and ``ntlm_messages`` (bytes) ->
``guessing`` -> ``ntlm_logon`` -> ``ntlm`` -> ``exchange`` -> ``principals`` -> ``acceptor`` (one logon).
"""

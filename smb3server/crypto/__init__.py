"""Protection of SMB messages: signatures, encryption, keys.

Belongs here: algorithms over messages and the keys derived for them. Not here: passwords and tickets (``auth``), and
the protection of calls by RPC (``rpc.security``).

Reading order: ``algorithms`` (numbers) -> ``preauth`` (the hash from which 3.1.1 derives keys) -> ``kdf`` (all keys of
a session) -> ``signing`` -> ``encryption`` -> ``envelope`` (both, applied to a message). ``old`` has
what NTLM alone needs.
"""

"""Authentication: SPNEGO, NTLMv2, Kerberos."""

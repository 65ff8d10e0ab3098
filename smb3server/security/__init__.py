"""Signing, encryption, preauthentication integrity, key derivation."""

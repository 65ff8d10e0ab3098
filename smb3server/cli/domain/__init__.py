"""The commands about the membership in a domain. Reading order: ``command`` -> ``join`` (its short name)."""

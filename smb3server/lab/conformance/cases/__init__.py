"""The cases, one module per suite. ``registry.load`` imports them all."""

"""What protects messages: their hashes, keys, signatures and encryption.

Reading order: ``algorithms`` -> ``preauth`` -> ``kdf`` -> ``signing`` -> ``encryption``.
"""

"""Compression of SMB messages, and the algorithms that it uses.

Belongs here: bytes in, bytes out, and when that pays. Not here: which messages are compressed (``dispatch``,
``commands``, ``client``), and the order of compression, signature and encryption (``crypto.envelope``).

Reading order: ``matches`` -> ``lznt1``, ``lz77``, ``lz77_huffman`` (formats of MS-XCA, in Python) -> ``codecs`` (what
compresses and decompresses, by algorithm) -> ``benefit`` (whether it pays) -> ``transform`` (compressed messages). The
formats are in C as well, in a module that is preferred.
"""

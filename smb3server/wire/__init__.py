"""MS-SMB2 and MS-FSCC messages, declared once (``smbdirect.codec``), one module per command family.

Reading order: ``header``, ``status`` and ``fields`` (what all have in common) -> ``negotiate``, ``session``, ``create``
with ``create_contexts``, ``read_write`` -> the others, each by itself. ``attributes``, ``file_id`` and ``filetime`` are
values.
"""

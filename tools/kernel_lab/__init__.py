"""A Linux 6.12 guest with the kernel's own SMB Direct client, and the cases it runs against the server.

``build.sh`` makes the guest, ``run.sh`` boots it, ``guest/`` is what runs inside; ``cases`` says what is run and what
must come out, ``judge`` decides, ``server`` starts the server under test, ``__main__`` puts them together.
"""

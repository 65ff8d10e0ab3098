"""A Linux 6.12 guest with the kernel's own SMB Direct client, and the cases that it runs against the server.

``build.sh`` makes the guest, ``run.sh`` boots it, and ``guest/`` runs inside. ``cases`` defines the cases and their
results, ``judge`` decides, ``server`` starts the server under test, ``__main__`` puts them together.
"""

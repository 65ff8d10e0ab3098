"""Shared virtual disks: images, their sectors, and what clients ask of them. [MS-RSVD, MS-VHDX]

Belongs here: the format of images and sets, SCSI, reservations, tunnel operations. Not here: requests and opens of SMB2
(``commands``), and names and rights of files: who opens a disk hands over its folder (``disk.Files``).

Reading order: ``layout`` (structures of VHDX), ``checksum``, ``reading`` and ``claims`` (one writer of an image) ->
``log_replay`` and ``log_writing`` -> ``vhdx`` (an image) and ``making`` (a new one) -> ``vhd_set`` -> ``tracking`` ->
``disk`` (the chain of images) -> ``reservations`` and ``scsi`` -> ``device`` (one open of a disk) and ``handle`` (READ
and WRITE) -> ``stored`` (what of an open outlives the server) -> ``tunnel`` (the operations) -> ``snapshots`` and
``meta`` (those of version 2).
"""

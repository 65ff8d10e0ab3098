"""Messages of MS-SMB2 and MS-FSCC, declared once (``smbdirect.codec``), one module per command family.

Belongs here: layouts, numbers and names of the protocol, and the checks that a message needs before it is sliced.
Malformed input raises ``DecodeError``. Not here: the effect of a message on a session or a file.

Reading order: ``header`` and ``status`` (parts of every message) -> ``fields`` (checks of variable parts) ->
``attributes``, ``filetime``, ``address`` and ``upcase`` (what other rooms use as well) -> ``negotiate``,
``compression`` and ``session`` -> ``create`` and ``create_contexts`` -> ``read_write`` and ``rdma_transform`` ->
``info_class``, ``file_info``, ``directory_info`` and ``fs_info`` (information levels) -> ``posix`` (contexts and levels
of the POSIX extensions) -> ``ioctl`` (with the numbers of all FSCTLs), ``fsctl`` and ``offload`` (their inputs and
outputs), ``dfs`` (referrals), ``one_sided`` (two of our own), ``svhdx`` (shared virtual disks) and ``sqos`` (storage
QoS) -> ``query_info``, ``quota``, ``set_info``, ``query_directory``, ``change_notify``, ``oplock_break``, ``lock``,
``flush``, ``close``, ``error``, ``share_redirect`` and ``server_notification`` -> ``apple`` (what Apple's clients have
added).
"""

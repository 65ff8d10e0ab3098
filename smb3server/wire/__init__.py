"""Messages of MS-SMB2 and MS-FSCC, declared once (``smbdirect.codec``), one module per command family.

Belongs here: layouts, numbers and names of the protocol, and the checks that a message needs before it is sliced.
Malformed input is a ``DecodeError``. Not here: what a message means for a session or a file.

Reading order: ``header`` and ``status`` (what every message has) -> ``fields`` (how variable parts are checked) ->
``attributes``, ``filetime``, ``file_id`` and ``address`` (values that other rooms use as well) -> ``negotiate`` and
``session`` -> ``create`` and ``create_contexts`` -> ``read_write`` -> ``file_info``, ``directory_info`` and
``fs_info`` (information levels) -> ``ioctl`` (with the numbers of all FSCTLs) and ``fsctl`` (what they carry) -> the
other commands.
"""

"""IOCTL (MS-SMB2 3.3.5.15): one control code per function, registered with ``ioctl.fsctl``.

Reading order: ``ioctl`` (the table) -> ``network`` -> ``file`` -> ``compression`` -> ``copy_chunk`` -> ``pipe`` (with
``pipe_turns``) -> ``smbtorture`` (codes for tests, off by default).
"""

"""IOCTL and its control codes. [MS-SMB2 3.3.5.15]

Reading order: ``ioctl`` (the command; ``@fsctl`` registers a code of ``wire.ioctl.Fsctl``) -> ``file`` and
``copy_chunk`` (codes about files) -> ``offload`` (copies by tokens) -> ``snapshots`` (those of the share) -> ``ntfs``
(the volume's sizes, numbers of files) -> ``network`` (interfaces, resiliency) -> ``dfs`` (referrals) -> ``one_sided``
(files lent for transfers without requests) -> ``pipe`` (calls through named pipes) -> ``smbtorture`` (codes of that
test suite, refused unless ``Settings.test_fsctls`` is set).
"""

"""FileFsAttributeInformation says what works on the share, and nothing else. [MS-FSCC 2.5.1]"""

from __future__ import annotations

import pytest

from smb3server.backends.memory.backend import MemoryBackend
from smb3server.commands.info.fs_levels import volume_attributes
from smb3server.settings.share import ShareRules
from smb3server.state.share import Share
from smb3server.wire.fs_info import FsAttributes

ALWAYS = (
    FsAttributes.PERSISTENT_ACLS
    | FsAttributes.SUPPORTS_HARD_LINKS
    | FsAttributes.SUPPORTS_EXTENDED_ATTRIBUTES
    | FsAttributes.SUPPORTS_OBJECT_IDS
    | FsAttributes.SUPPORTS_POSIX_UNLINK_RENAME
)
NEVER = FsAttributes.VOLUME_QUOTAS | FsAttributes.SUPPORTS_OPEN_BY_FILE_ID | FsAttributes.SUPPORTS_SPARSE_VDL


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("read_only", [True, False])
def test_flags_follow_the_share(streams: bool, read_only: bool) -> None:
    share = Share("data", backend=MemoryBackend(), read_only=read_only, rules=ShareRules(streams=streams))
    assert share.backend is not None
    found = volume_attributes(share, share.backend)
    assert found & ALWAYS == ALWAYS
    assert not found & NEVER
    assert bool(found & FsAttributes.NAMED_STREAMS) == streams
    assert bool(found & FsAttributes.READ_ONLY_VOLUME) == read_only

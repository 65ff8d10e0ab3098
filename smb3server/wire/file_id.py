"""SMB2_FILEID. [MS-SMB2 2.2.14.1]"""

FileId = tuple[int, int]
"""(persistent, volatile)."""
RELATED_FILE_ID: FileId = (0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""In a related command: the open of the command before. [MS-SMB2 3.3.5.2.7.2]"""

"""``smb3server status``.

Reading order: ``selection`` (the part of a report that is shown) -> ``layout`` and ``short_tables`` (tables of any
width) -> ``tables`` (the report as tables) -> ``live`` (--watch) -> ``command``.
"""

"""``smb3server status``.

Reading order: ``command`` -> ``selection`` (what is asked for) -> ``tables`` and ``short_tables`` (what is shown) ->
``layout`` (how it fits) -> ``live`` (``--watch``).
"""

"""Check that imports point downward, without circles: ``python -m tools.check_layers [ROOT]``, part of ``make lint``.

Reading order: ``rooms`` (the order, and the few additional rules) -> ``graph`` (modules and their imports) ->
``check``.

Every import counts: those that run at the start, those inside functions and those under ``if TYPE_CHECKING``, since a
reader follows all of them. Modules loaded by a computed name are not seen: ``commands.load``, ``make_provider`` and the
table of commands in ``smb3server.cli.tree``. They all load modules below or beside them.
"""

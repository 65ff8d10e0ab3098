"""Imports point downward, and there is no circle: ``python -m tools.check_layers [ROOT]``, part of ``make lint``.

Reading order: ``rooms`` (the order, and the few rules beside it) -> ``graph`` (who imports whom) -> ``check``.

Every import counts: those that run at the start, those inside functions and those under ``if TYPE_CHECKING``, since a
reader follows all of them. What a program loads by a name that it puts together is not seen: ``commands.load``,
``make_provider`` and the table of commands in ``smb3server.cli.main``, which all load what lies below or beside them.
"""

"""Make random rounds: a tree with descriptors, then operations by either user."""

from __future__ import annotations

import random

from tools.access_differential import steps
from tools.access_differential.steps import Ace, Do, Step, Who

_FOLDERS = ("d1", "d1\\sub", "d2")
_FILES = ("a.txt", "b.txt", "d1\\x.txt", "d1\\y.txt", "d1\\sub\\z.txt", "d2\\w.txt")
_NEW = ("new", "d1\\new", "d2\\new", "d1\\sub\\new")
_STREAMS = ("a.txt:s", "d1\\x.txt:s", "d2\\w.txt:t", "d1\\new:s", "d1:s")
_READ, _WRITE = 0x120089, 0x120116
_SINGLE_BITS = tuple(1 << bit for bit in (*range(9), *range(16, 21)))
_MASKS = (
    *(_READ, _READ | _WRITE, 0x1200A9, 0x1301BF, steps.ALL, steps.ALL),
    *(steps.ALL & ~steps.DELETE, steps.ALL & ~(steps.DELETE | steps.DELETE_CHILD), steps.ALL & ~steps.WRITE_DATA),
    *(steps.ALL & ~steps.APPEND_DATA, steps.ALL & ~steps.WRITE_ATTRIBUTES, steps.ALL & ~steps.WRITE_EA),
    *(steps.ALL & ~(steps.WRITE_DAC | steps.WRITE_OWNER), steps.DELETE, steps.DELETE_CHILD, steps.WRITE_DAC),
    *(steps.WRITE_OWNER, steps.READ_CONTROL, steps.WRITE_DATA, steps.APPEND_DATA),
)
_FLAGS = (0, 0, 3, 3, 3, 1, 2, 0xB, 0x9, 0xA, 0x7)
_NAMED = (Who.ALICE, Who.BOB, Who.BOB, Who.EVERYONE, Who.EVERYONE, Who.AUTHENTICATED, Who.STRANGER)
_PLACEHOLDERS = (*_NAMED, Who.CREATOR_OWNER, Who.OWNER_RIGHTS)

NEEDED = {
    Do.READ: steps.READ_DATA,
    Do.WRITE: steps.WRITE_DATA,
    Do.LIST: steps.READ_DATA,
    Do.RENAME: steps.DELETE,
    Do.LINK: steps.WRITE_ATTRIBUTES,
    Do.DISPOSE: steps.DELETE,
    Do.BASIC: steps.WRITE_ATTRIBUTES,
    Do.END_OF_FILE: steps.WRITE_DATA,
    Do.EA: steps.WRITE_EA,
    Do.OWNER: steps.WRITE_OWNER,
    Do.GROUP: steps.WRITE_OWNER,
    Do.DACL: steps.WRITE_DAC,
    Do.QUERY_SECURITY: steps.READ_CONTROL,
    Do.QUERY_ACCESS: steps.MAXIMUM,
    Do.QUERY_ATTRIBUTES: steps.READ_ATTRIBUTES,
}
"""Access that an open usually has when the action is tried. [MS-FSA 2.1.5.10 to 2.1.5.17]"""


def make_round(random_: random.Random, operations: int) -> list[Step]:
    """Return a round: about a dozen steps that make the tree, then ``operations`` random ones."""
    return [*_tree(random_), *(_operation(random_) for _ in range(operations))]


def _tree(random_: random.Random) -> list[Step]:
    made = [_made(random_, 0, "", folder=True, top=True)]
    made += [_made(random_, random_.choice((0, 0, 1)), name, folder=True) for name in _FOLDERS]
    made += [_made(random_, random_.choice((0, 0, 0, 1)), name, folder=False) for name in _FILES]
    return made


def _made(random_: random.Random, user: int, path: str, *, folder: bool, top: bool = False) -> Step:
    disposition, options = steps.CREATE, steps.DIRECTORY_FILE if folder else steps.NON_DIRECTORY_FILE
    attributes = steps.ATTRIBUTE_READONLY if not folder and random_.random() < 0.1 else 0
    if not top and random_.random() < 0.3:
        return Step(user, path, steps.ALL, disposition, options, attributes)
    aces = acl(random_)
    if top:
        aces = (Ace(Who.EVERYONE, random_.choice((steps.ALL, 0x1200AF, 0x1301BF)), flags=3), *aces)
    return Step(user, path, steps.ALL, disposition, options, attributes, Do.DACL, aces=aces)


def acl(random_: random.Random) -> tuple[Ace, ...]:
    """Return up to five entries, in most cases including one that grants access."""
    entries = [
        Ace(
            random_.choice(_PLACEHOLDERS),
            random_.choice(_MASKS if random_.random() < 0.8 else _SINGLE_BITS),
            deny=random_.random() < 0.25,
            flags=random_.choice(_FLAGS),
        )
        for _ in range(random_.randint(0, 3))
    ]
    if random_.random() < 0.7:
        entries.append(Ace(Who.ALICE, steps.ALL, flags=3))
    if random_.random() < 0.5:
        entries.append(Ace(Who.EVERYONE, random_.choice(_MASKS), flags=3))
    return tuple(entries)


def _access(random_: random.Random, do: Do) -> int:
    needed = NEEDED.get(do, 0)
    if random_.random() < 0.75 and needed:
        more: int = random_.choice((0, 0, steps.READ_ATTRIBUTES, steps.SYNCHRONIZE, steps.MAXIMUM))
        return needed | more
    chosen: int = random_.choice(
        (
            *(_READ, _WRITE, steps.ALL, steps.MAXIMUM, steps.MAXIMUM, steps.DELETE, steps.READ_ATTRIBUTES),
            *(steps.WRITE_DAC, steps.WRITE_OWNER, steps.MAXIMUM | steps.DELETE, steps.SYSTEM_SECURITY),
            *(steps.GENERIC_ALL, steps.GENERIC_READ, steps.GENERIC_WRITE, steps.GENERIC_EXECUTE),
            *random_.choices(_SINGLE_BITS, k=4),
        )
    )
    return chosen


def _operation(random_: random.Random) -> Step:
    user = random_.choice((0, 1, 1, 1))
    do = random_.choice((Do.NOTHING, Do.NOTHING, Do.NOTHING, Do.QUERY_ACCESS, Do.RENAME, Do.LINK, *Do))
    places = random_.choices((_FILES, _FOLDERS, _NEW, _STREAMS, ("",)), (8, 4, 3, 4, 1))[0]
    path = random_.choice(places)
    access = _access(random_, do)
    disposition = random_.choice((steps.OPEN,) * 6 + (steps.SUPERSEDE, steps.CREATE, steps.OPEN_IF))
    if random_.random() < 0.2:
        disposition = random_.choice((steps.OVERWRITE, steps.OVERWRITE_IF, steps.OPEN_IF, steps.CREATE))
    options = random_.choice((0,) * 8 + (steps.DELETE_ON_CLOSE, steps.BACKUP_INTENT, steps.DIRECTORY_FILE))
    if options & steps.DELETE_ON_CLOSE and random_.random() < 0.7:
        access |= random_.choice((steps.DELETE, steps.MAXIMUM))
    attributes = random_.choice((0,) * 9 + (steps.ATTRIBUTE_READONLY,))
    target, replace, number = "", False, 0
    who: Who | None = None
    aces: tuple[Ace, ...] = ()
    if do in {Do.RENAME, Do.LINK}:
        target = random_.choice((*_NEW, *_FILES))
        replace = random_.random() < 0.6
    elif do == Do.BASIC:
        number = random_.choice((steps.ATTRIBUTE_NORMAL, steps.ATTRIBUTE_READONLY, steps.ATTRIBUTE_HIDDEN))
    elif do == Do.END_OF_FILE:
        number = random_.choice((0, 3, 100))
    elif do == Do.QUERY_SECURITY:
        number = random_.choice((1, 2, 4, 7, 7, 8, 0xF))
    elif do in {Do.OWNER, Do.GROUP}:
        own = (Who.ALICE, Who.BOB)[user] if do == Do.OWNER else (Who.ALICES_GROUP, Who.BOBS_GROUP)[user]
        who = random_.choice((own, own, Who.ALICE, Who.BOB, Who.STRANGER, Who.ADMINISTRATORS, Who.EVERYONE))
    elif do == Do.DACL:
        aces = acl(random_)
    return Step(user, path, access, disposition, options, attributes, do, target, replace, number, who, aces)

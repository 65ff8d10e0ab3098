"""Conditions of callback ACEs: their encoding, their text and their value. [MS-DTYP 2.4.4.17]

Reading order: ``expression`` (the encoding) -> ``evaluation`` (TRUE, FALSE or UNKNOWN) -> ``text`` (SDDL).
"""

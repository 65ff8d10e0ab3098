"""Commands about the program itself.

Reading order: ``version`` -> ``help`` -> ``manual`` -> ``completion``.
"""

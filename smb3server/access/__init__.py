"""Who may do what to a file.

``masks`` has the rights as numbers, ``decide`` the rules as functions of such numbers, ``required`` what each command
needs its open to have been granted, ``caller`` asks the descriptors of real files on behalf of a session.
"""

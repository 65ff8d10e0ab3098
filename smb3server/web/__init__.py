"""The web page: what the server does, for administrators with a browser.

Reading order: ``logins`` (who may see it) -> ``guards`` (what every request must be like) -> ``feed`` (live data) ->
``page`` (the addresses, and what they answer) -> ``serving`` (the listener).

Python says what is the case, as ``smb3server status --json`` does; the script in ``static/`` says how it looks.
"""

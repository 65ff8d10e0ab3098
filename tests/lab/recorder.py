"""Records break notifications; time moves by hand."""

from collections.abc import Callable

from smb3server.files.caching import Holder, Lease, Oplock


class Recorder:
    """Records notifications; time moves by hand."""

    def __init__(self) -> None:
        self.sent: list[tuple[object, int, int, bool]] = []
        self.timers: list[FakeTimer] = []
        self.reachable = True
        self.soon: list[Callable[[], None]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "FakeTimer":
        timer = FakeTimer(delay, callback)
        self.timers.append(timer)
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        """What was to be called soon, is."""
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()

    def notify_lease(self, lease: Lease, current: int, new: int, ack_required: bool) -> bool:
        self.sent.append((lease.key, current, new, ack_required))
        return self.reachable

    def changed(self, holder: Holder) -> None:
        pass

    def notify_oplock(self, oplock: Oplock, level: int) -> bool:
        self.sent.append((oplock.open, 0, level, False))
        return self.reachable


class FakeTimer:
    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay, self.callback, self.cancelled = delay, callback, False

    def cancel(self) -> None:
        self.cancelled = True

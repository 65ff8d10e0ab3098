"""What a running server tells its operators: audit, metrics, traces, and the levels of its log."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smb3server.admin.socket import Command, RefusedError
from smb3server.config.error import ConfigError
from smb3server.config.model import Config
from smb3server.observing import trace
from smb3server.observing.loop_lag import LoopLag
from smb3server.observing.trace import TraceError, Traces, Wanted
from smb3server.process import log_levels, log_output, parts
from smb3server.process.audit_log import AuditLines, AuditLog
from smb3server.server.server import Server
from smb3server.state.audit import ShareAudit
from smb3server.state.recent_events import RemembersAudit

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

    from smb3server.observing.metrics_port import MetricsPort
    from smb3server.status.cluster_state import ClusterState

log = logging.getLogger(__name__)

Json = dict[str, Any]


class Observing:
    """The observability of one server. ``open_audit`` first, then ``start``, and ``close`` at the end."""

    def __init__(self, config: Config, server: Server) -> None:
        self._config = config
        self._server = server
        self._audit: AuditLog | AuditLines | None = None
        self._lag = LoopLag()
        self._registry: CollectorRegistry | None = None
        self.port: MetricsPort | None = None
        """Where Prometheus scrapes; None if there is no such port."""
        self.scraped: Callable[[], Awaitable[bytes]] | None = None
        """Returns what the port answers. None means the metrics of this process."""
        self.traces = Traces(server)
        self.cluster: ClusterState | None = None
        """The node, if the server is one of a cluster. Set it before ``start``."""

    # The audit

    def audit_of(self, kinds: frozenset[str]) -> ShareAudit | None:
        """Return the audit of a share. The first one opens the audit's file. Raises ``ConfigError``."""
        if not kinds:
            return None
        if self._audit is None:
            path = self._config.log.audit_file
            try:
                self._audit = AuditLines() if path is None else AuditLog(path)
            except OSError as error:
                raise ConfigError(f"audit_file {path}: {error.strerror}") from error
        return ShareAudit(kinds, RemembersAudit(self._audit, self._server.events.recent_audit))

    def reopen_logs(self) -> None:
        """Write to new files of the same names: the old ones were renamed (logrotate)."""
        try:
            log_output.reopen()
        except OSError as error:
            log.error("log_file cannot be opened again, and the old file stays in use: %s", error)
        if isinstance(self._audit, AuditLog):
            self._audit.reopen()

    # Start and end

    async def start(self) -> None:
        """Serve metrics and begin the configured traces. Raises ``ConfigError``."""
        settings = self._config.metrics
        if settings is not None:
            self._begin_metrics()
            if settings.port:
                self._listen(settings.listen, settings.port)
        for given in self._config.traces:
            try:
                client = trace.parse_client(given.client)
                self.traces.begin(Wanted(client, given.file, given.decrypt, trace.MAX_SECONDS))
            except TraceError as error:
                raise ConfigError(f"--trace: {error}") from error

    def _begin_metrics(self) -> CollectorRegistry:
        """Count requests, and return the registry with all metrics. Raises ``ConfigError``."""
        if self._registry is None:
            try:
                # prometheus_client is an extra.
                from smb3server.observing.metrics import registry
            except ImportError as error:
                raise ConfigError(f"metrics need {error.name}; {parts.remedy('metrics')}") from error
            self._server.measuring.count()
            self._lag.start()
            audit = self._audit if isinstance(self._audit, AuditLog) else None
            self._registry = registry(self._server, self._lag, audit, self.cluster)
        return self._registry

    def _listen(self, host: str, port: int) -> None:
        from smb3server.observing.metrics_port import MetricsPort

        made = MetricsPort(self._metrics if self.scraped is None else self.scraped, self._server.admits)
        try:
            made.start(host, port)
        except OSError as error:
            raise ConfigError(f"[metrics]: cannot listen on {host} port {port}: {error.strerror}") from error
        self.port = made

    def _metrics(self) -> bytes:
        from smb3server.observing.metrics import text

        return text(self._begin_metrics())

    async def close(self) -> None:
        """End everything, and write what is queued."""
        self.traces.end_all()
        self._lag.stop()
        if self.port is not None:
            await self.port.close()
        if self._audit is not None:
            self._audit.close()

    def reloaded(self, config: Config, log: bool) -> None:
        """Write to new files if the old ones were renamed. ``log``: set the levels of the log as configured."""
        self._config = config
        if log:
            log_levels.apply(log_levels.parse(config.log_level))
        self._server.measuring.update()
        self.reopen_logs()

    # Commands of the admin socket

    def commands(self) -> dict[str, Command]:
        """Return the commands of the admin socket."""
        return {
            "metrics": self._metrics_command,
            "log-level": self._log_level,
            "log-reopen": self._reopen,
            "trace": self._trace,
            "trace-list": lambda _: {"traces": [_described(running) for running in self.traces.running.values()]},
            "trace-stop": self._trace_stop,
        }

    def _metrics_command(self, request: Json) -> Json:
        try:
            return {"text": self._metrics().decode()}
        except ConfigError as error:
            raise RefusedError(str(error)) from error

    def _log_level(self, request: Json) -> Json:
        """Change levels of the log until the next reload, or say what they are."""
        wanted = request.get("level", "")
        if not isinstance(wanted, str):
            raise RefusedError("level: a text such as info,auth:debug is needed")
        if wanted:
            try:
                levels = log_levels.parse(wanted, log_levels.in_force())
            except ValueError as error:
                raise RefusedError(str(error)) from error
            log_levels.apply(levels)
            self._server.measuring.update()
            log.warning("levels of the log: %s", levels)
        return {"level": str(log_levels.in_force())}

    def _reopen(self, request: Json) -> Json:
        self.reopen_logs()
        return {}

    def _trace(self, request: Json) -> Json:
        try:
            return _described(self.traces.begin(_wanted(request)))
        except TraceError as error:
            raise RefusedError(str(error)) from error

    def _trace_stop(self, request: Json) -> Json:
        found = self.traces.running.get(Path(str(request.get("file", ""))))
        if found is None:
            raise RefusedError("no such trace is under way")
        self.traces.end(found, "stopped by the operator")
        return _described(found)


def _wanted(request: Mapping[str, Any]) -> Wanted:
    """Read the arguments of the command ``trace``. Raises ``TraceError``."""
    client, file = request.get("client"), request.get("file")
    seconds, size = request.get("seconds", trace.SECONDS), request.get("max_size", trace.MAX_SIZE)
    if not isinstance(client, str) or not isinstance(file, str) or not file.startswith("/"):
        raise TraceError("client and file are needed; file is an absolute path")
    if not isinstance(seconds, int | float) or not isinstance(size, int) or size <= 0:
        raise TraceError("seconds and max_size are numbers")
    return Wanted(trace.parse_client(client), Path(file), request.get("decrypt") is True, float(seconds), size)


def _described(found: trace.Trace) -> Json:
    return {
        "client": str(found.wanted.client),
        "file": str(found.wanted.path),
        "decrypt": found.wanted.decrypt,
        "messages": found.messages,
        "bytes": found.bytes,
        "connections": len(found.taps),
        "ended_by": found.ended_by,
    }

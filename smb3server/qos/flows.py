"""Logical flows: the reads and writes of all opens that a client has associated with one id. [MS-SQOS 3.2.1]"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from smb3server.qos.rates import Limit, Measured
from smb3server.settings.storage_policies import StoragePolicy
from smb3server.wire.sqos import BASE_IO_SIZE, FlowStatus

MAX_FLOWS = 4096
NO_ID = bytes(16)


class Flow:
    """A logical flow. Its limits are those of its policy; without one, those that the client has set."""

    def __init__(self, flow_id: bytes, policy_of: Callable[[bytes], StoragePolicy | None], now: float) -> None:
        self.flow_id = flow_id
        self._policy_of = policy_of
        self.opens = 0
        """Number of opens that are associated with it."""
        self.policy_id = self.initiator_id = NO_ID
        self.limit = self.reservation = self.bandwidth_limit = 0
        """As the client has set them."""
        self.initiator = self.node = ""
        self.operations = self.bytes = self.delayed = 0
        """Operations that the server has done, their bytes, and those of them that had to wait."""
        self.reported_operations = self.reported_latency = 0
        """Counts of the client: operations, and what they took in units of 100 ns."""
        self._iops, self._bandwidth = Limit(), Limit()
        self._measured_operations, self._measured_bytes = Measured(now), Measured(now)

    @property
    def policy(self) -> StoragePolicy | None:
        """Its policy. None: it has none, or one that is not known."""
        return self._policy_of(self.policy_id) if self.policy_id != NO_ID else None

    @property
    def maximum_iops(self) -> int:
        """Normalized operations per second that it may have. 0: any number."""
        policy = self.policy
        return policy.maximum_iops if policy is not None else self.limit

    @property
    def minimum_iops(self) -> int:
        """Normalized operations per second that it is to get."""
        policy = self.policy
        return policy.minimum_iops if policy is not None else self.reservation

    @property
    def maximum_bandwidth(self) -> int:
        """KiB per second that it may have. 0: any number."""
        policy = self.policy
        return policy.maximum_bandwidth if policy is not None else self.bandwidth_limit

    @property
    def status(self) -> FlowStatus:
        """Whether it is served as its policy says."""
        if self.policy_id != NO_ID and self.policy is None:
            return FlowStatus.UNKNOWN_POLICY_ID
        return FlowStatus.OK

    def admit(self, now: float, length: int) -> float:
        """Count a read or write of ``length`` bytes. Return the seconds that it has to wait."""
        units = max(-(-length // BASE_IO_SIZE), 1)
        self._iops.per_second = self.maximum_iops
        self._bandwidth.per_second = self.maximum_bandwidth * 1024
        wait = max(self._iops.admit(now, units), self._bandwidth.admit(now, length))
        self.operations += 1
        self.bytes += length
        self.delayed += wait > 0
        self._measured_operations.add(now, units)
        self._measured_bytes.add(now, length)
        return wait

    def rates(self, now: float) -> tuple[float, float]:
        """Return the normalized operations and the bytes per second that came lately."""
        return self._measured_operations.rate(now), self._measured_bytes.rate(now)

    def __str__(self) -> str:
        return str(uuid.UUID(bytes_le=self.flow_id))


class FlowTable:
    """LogicalFlowTable. A flow is there while an open is associated with it. [MS-SQOS 3.2.1.1]"""

    ended_operations = ended_delayed = 0
    """Operations of flows that are gone, and those that had to wait."""

    def __init__(self, policy_of: Callable[[bytes], StoragePolicy | None]) -> None:
        """``policy_of``: returns the policy with an id, as it is configured now."""
        self._policy_of = policy_of
        self.by_id: dict[bytes, Flow] = {}

    def join(self, flow_id: bytes, now: float) -> Flow | None:
        """Return the flow with an id for one more open. None: there are too many flows."""
        flow = self.by_id.get(flow_id)
        if flow is None:
            if len(self.by_id) >= MAX_FLOWS:
                return None
            flow = self.by_id[flow_id] = Flow(flow_id, self._policy_of, now)
        flow.opens += 1
        return flow

    def leave(self, flow: Flow) -> None:
        """Note that an open is not associated with the flow any longer."""
        flow.opens -= 1
        if not flow.opens:
            del self.by_id[flow.flow_id]
            self.ended_operations += flow.operations
            self.ended_delayed += flow.delayed

    @property
    def totals(self) -> tuple[int, int]:
        """Operations of all flows since the server's start, and those that had to wait."""
        flows = self.by_id.values()
        operations = self.ended_operations + sum(flow.operations for flow in flows)
        return operations, self.ended_delayed + sum(flow.delayed for flow in flows)

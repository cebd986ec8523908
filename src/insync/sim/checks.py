"""What must hold in every run.

`history` has what clients wrote and read. `Monitor` checks the store at every step and the brokers
periodically, and compares the logs at the end. The checks compute everything themselves, from the
store's bytes and the brokers' logs. Only `isr_checks` uses the rules: the policy's decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from insync.broker.replication.replica import Replica
from insync.metadata.store import Entry
from insync.node.node import Node
from insync.rules.values import BrokerId
from insync.sim.cluster import Broker, Cluster
from insync.sim.history import Partition
from insync.sim.isr_checks import IsrChecker
from insync.sim.ownership import context_of


class RunFailed(AssertionError):
    """Something that must hold did not."""


@dataclass
class _StoredState:
    """A partition's state, as the store had it at the last step."""

    topic_id: UUID
    version: int
    state: dict[str, Any]


class Monitor:
    """Checks every step of the store, and every broker when `check_brokers` is called."""

    def __init__(self, cluster: Cluster, *, unclean: bool, flushes: bool = False) -> None:
        self._cluster = cluster
        self._is_unclean = unclean
        self._flushes = flushes  # log.flush.interval.messages=1
        self._states: dict[Partition, _StoredState] = {}
        self._sessions: dict[int, list[tuple[str, int, int | None]]] = {}
        self._led: dict[tuple[UUID, Partition, int], tuple[int, int]] = {}
        self._watermarks: dict[tuple[UUID, Partition, int], int] = {}
        self._committed: dict[tuple[UUID, Partition], int] = {}
        self._live: dict[str, int] = {}
        self._handled: dict[int, bool] = {}  # broker: a controller has handled its last start
        self._resigned_at_ms: dict[str, int] = {}  # by path of the cool-down
        self._cooling: set[str] = set()
        self._isr_checker = IsrChecker()
        self.failure: str | None = None
        cluster.tree.attach(self)
        for broker in cluster.brokers.values():
            broker.disk.on_truncate = self._on_truncate
        known: dict[Partition, _StoredState | None] = {}
        for path, entry in cluster.tree.entries.items():
            if path.startswith("/brokers/topics/"):
                self._note_topic_node(path, entry, known)
        self._states = {key: each for key, each in known.items() if each is not None}
        self._check_sessions()
        self._handled = {
            number: self._is_handled_by_controller(number) for number in cluster.brokers
        }

    def notify(self, revision: int) -> None:
        """Check what the last step of the store changed."""
        self._cluster.note("step", revision)
        sections = set()
        changed: dict[Partition, _StoredState | None] = {}
        for path, entry in self._cluster.tree.last_step():
            sections.add(path.split("/", 2)[1])
            if path.startswith("/brokers/topics/"):
                self._note_topic_node(path, entry, changed)
        if "sessions" in sections:
            self._check_sessions()
        handled_before = self._handled
        if "brokers" in sections:
            self._handled = {
                number: self._is_handled_by_controller(number) for number in self._cluster.brokers
            }
        if "cooling" in sections:
            self._check_resignations()
        for key, stored in changed.items():
            self._apply_state(key, stored)
        # A broker that has just restarted may lack records, and fetches them at once.
        self.check_brokers(changed if self._handled == handled_before else None)

    def _on_truncate(self, path: str) -> None:
        """A log was cut. Check it when that is complete, before its replica fetches again."""
        name, _, number = path.rpartition("/")[0].rpartition("/")[2].rpartition("-")
        keys = [(name, int(number))] if number.isdigit() else []
        self._cluster.loop.call_soon(self.check_brokers, keys, context=context_of(None))

    def _note_topic_node(
        self, path: str, entry: Entry | None, changed: dict[Partition, _StoredState | None]
    ) -> None:
        parts = path.split("/")
        if parts[-1] != "state":
            return
        key = (parts[3], int(parts[5]))
        topic = self._cluster.tree.entries.get("/".join(parts[:4]))
        if entry is None or topic is None:
            changed[key] = None
        else:
            topic_id = UUID(json.loads(topic.value)["topic_id"])
            changed[key] = _StoredState(topic_id, entry.version, json.loads(entry.value))

    # The store.

    def _entries(self, prefix: str) -> Iterator[tuple[str, Any]]:
        return ((p, e) for p, e in self._cluster.tree.entries.items() if p.startswith(prefix))

    def _check_sessions(self) -> None:
        now_ms = self._cluster.loop.clock_ms()
        live = {
            path.rpartition("/")[2]: int(entry.value.rpartition(b"-")[2])
            for path, entry in self._entries("/sessions/")
        }
        for session, broker in self._live.items():
            if session not in live:
                spans = self._sessions[broker]
                spans[:] = [(s, b, now_ms if s == session else e) for s, b, e in spans]
        for session, broker in live.items():
            if session not in self._live:
                self._sessions.setdefault(broker, []).append((session, now_ms, None))
        self._live = live

    def had_session(self, broker: int, at_ms: int) -> bool:
        spans = self._sessions.get(broker, [])
        return any(b <= at_ms and (e is None or at_ms <= e) for _, b, e in spans)

    def states(self) -> dict[Partition, _StoredState]:
        return self._states

    def _apply_state(self, key: Partition, stored: _StoredState | None) -> None:
        before = self._states.pop(key, None)
        if stored is None:
            return
        self._states[key] = stored
        self._check_state(key, stored.state)
        if before is not None and before.topic_id == stored.topic_id:
            self._check_change(key, before, stored)

    def _check_state(self, key: Partition, state: dict[str, Any]) -> None:
        isr, leader = state["isr"], state["leader"]
        self._require(bool(isr), f"{key}: the ISR is empty")
        self._require(len(set(isr)) == len(isr), f"{key}: the ISR {isr} names a broker twice")
        self._require(set(isr) <= set(state["replicas"]), f"{key}: {isr} are not all replicas")
        self._require(leader is None or leader in isr, f"{key}: leader {leader} is not in {isr}")
        in_reassignment = {*state["adding"], *state["removing"]}
        self._require(
            in_reassignment <= set(state["replicas"]),
            f"{key}: {in_reassignment} are not all replicas",
        )

    def _check_change(self, key: Partition, before: _StoredState, after: _StoredState) -> None:
        old, new = before.state, after.state
        self._require(after.version >= before.version, f"{key}: the state's version decreased")
        self._require(
            new["leader_epoch"] >= old["leader_epoch"], f"{key}: the leader epoch decreased"
        )
        if new["leader"] != old["leader"]:
            is_new = new["leader_epoch"] > old["leader_epoch"]
            self._require(is_new, f"{key}: the leader changed without a new leader epoch")
        if new != old:
            self._require(after.version > before.version, f"{key}: changed without a new version")
        removed = set(old["replicas"]) - set(new["replicas"])
        if removed:
            # A removed replica may come back empty: fetches of its old log must not count then.
            is_new = new["leader_epoch"] > old["leader_epoch"]
            self._require(is_new, f"{key}: {removed} were removed in the same leader epoch")
        if new["leader"] == old["leader"]:
            self._check_expand(key, set(new["isr"]) - set(old["isr"]), new["leader"])
        elif new["leader"] is not None and not self._is_unclean:
            # Eligible replicas lead if every member of the ISR is damaged.
            may_lead = {*old["isr"], *old.get("eligible", ())}
            self._require(
                new["leader"] in may_lead, f"{key}: {new['leader']} was not in the ISR or eligible"
            )

    def _check_resignations(self) -> None:
        """At most one resignation per replica and cool-down, also across controllers."""
        now_ms = self._cluster.loop.clock_ms()
        cooling = {path for path, _ in self._entries("/cooling/")}
        for path in sorted(cooling - self._cooling):
            since_ms = now_ms - self._resigned_at_ms.get(path, -self._cluster.cooldown_ms)
            self._require(
                since_ms >= self._cluster.cooldown_ms,
                f"{path}: resigned again after {since_ms} ms",
            )
            self._resigned_at_ms[path] = now_ms
        self._cooling = cooling

    def _check_expand(self, key: Partition, joined: set[int], leader: int | None) -> None:
        """Only the incarnation that the leader proposed may join; a later one may lack records."""
        node = None if leader is None else self._cluster.brokers[leader].node
        replica = None if node is None else node.replicas.partitions.get(key)
        term = None if replica is None else replica.term
        for member in sorted(joined):
            entry = self._cluster.tree.entries.get(f"/brokers/ids/{member}")
            registered = None if entry is None else json.loads(entry.value)["incarnation"]
            follower = None if term is None else term.followers.get(BrokerId(member))
            self._require(
                follower is None or follower.incarnation == registered,
                f"{key}: {member} joined as {follower and follower.incarnation}, not {registered}",
            )

    # The brokers.

    def check_brokers(self, keys: Iterable[Partition] | None = None) -> None:
        """Check what brokers lead: of `keys`, or everything."""
        for broker in self._cluster.up():
            if not broker.has_started or broker.node is None:
                continue
            partitions = broker.node.replicas.partitions
            if keys is None:
                led = [each for each in partitions.values() if each.term is not None]
            else:
                held = [partitions.get(key) for key in keys]
                led = [each for each in held if each is not None and each.term is not None]
            for replica in led:
                self._check_leader(broker, replica)

    def _check_leader(self, broker: Broker, replica: Replica) -> None:
        key, term = replica.key, replica.term
        stored = self._states.get(key)
        if term is None or stored is None or stored.topic_id != replica.topic_id:
            return
        assert broker.node is not None
        if broker.store is None or broker.store.is_over(self._cluster.clock_ms_of(broker)):
            return  # its session is over: it leads nothing, and may not know it
        epoch = (stored.topic_id, key, term.epoch)
        leader = (broker.number, broker.node.replicas.incarnation)
        # No message is formatted for what holds: a run checks this thousands of times.
        first = self._led.setdefault(epoch, leader)
        if first != leader:
            self._fail(f"{key} epoch {term.epoch} is led by {leader} and was led by {first}")
        watermark = replica.high_watermark
        if watermark < self._watermarks.get(epoch, 0):
            self._fail(f"{key}: the high watermark of epoch {term.epoch} fell to {watermark}")
        self._watermarks[epoch] = watermark
        watermark = max(watermark, *self._watermarks_of_replicas(stored, key))
        ends = {
            member: self._end_at(self._cluster.brokers[member], key, stored.topic_id)
            for member in stored.state["isr"]
        }
        self._check_isr_logs(stored, key, watermark, ends)
        now_ms = self._cluster.clock_ms_of(broker)
        for failure in self._isr_checker.check_partition(broker, replica, ends, now_ms=now_ms):
            self._fail(failure)

    def _watermarks_of_replicas(self, stored: _StoredState, key: Partition) -> Iterator[int]:
        """Whatever a replica takes for committed is: it may lead next."""
        yield 0
        for number in stored.state["replicas"]:
            broker = self._cluster.brokers[number]
            replica = None if broker.node is None else self._replica_of(broker.node, key)
            if replica is None or replica.topic_id != stored.topic_id:
                continue
            watermark, end = replica.high_watermark, replica.log.end
            if watermark > end:
                self._fail(
                    f"{key}: the high watermark of {number} is {watermark}, its log ends at {end}"
                )
            if self._flushes:
                self._check_flushed(broker, replica)
            yield watermark

    def _check_flushed(self, broker: Broker, replica: Replica) -> None:
        """A log end offset is claimed by the next fetch or answer, also that of a failed log."""
        log = replica.log
        last = log._segments[-1]  # noqa: SLF001 - what is visible, not what is written
        path = f"{log.path}/{last.base:020d}.log"
        unflushed_bytes = last.size - broker.disk.flushed_bytes(path) if last.size else 0
        if unflushed_bytes > 0:
            self._fail(
                f"{replica.key}: {unflushed_bytes} bytes below offset {log.end} of {broker.number} "
                "are not flushed, though every append is to be"
            )

    def _check_isr_logs(
        self,
        stored: _StoredState,
        key: Partition,
        watermark: int,
        ends: Mapping[int, int | None],
    ) -> None:
        """KAFKA-4485's fourth guarantee, also across leaders: the ISR has all committed records."""
        if self._is_unclean:
            return
        partition = (stored.topic_id, key)
        committed = self._committed[partition] = max(watermark, self._committed.get(partition, 0))
        for member, end in ends.items():
            if end is not None and end < committed:
                self._fail(
                    f"{key}: {member} is in the ISR, ends at {end} and lacks up to {committed}"
                )

    def _end_at(self, broker: Broker, key: Partition, topic_id: UUID) -> int | None:
        if broker.node is None:
            return broker.ends.get(key)
        if not self._handled.get(broker.number):
            return None  # it may have lost records at its restart; the controller will remove it
        replica = self._replica_of(broker.node, key)
        if replica is None or replica.topic_id != topic_id or replica.log.has_failed:
            return None
        return replica.log.end

    def _replica_of(self, node: Node, key: Partition) -> Replica | None:
        is_open = hasattr(node, "replicas")  # else it has just begun to start
        return node.replicas.partitions.get(key) if is_open else None

    def are_starts_handled(self) -> bool:
        """Whether a controller has handled the last start of every broker."""
        return all(map(self._is_handled_by_controller, self._cluster.brokers))

    def _is_handled_by_controller(self, broker: int) -> bool:
        """Whether a controller has handled the start of its current incarnation."""
        entries = self._cluster.tree.entries
        handled = entries.get(f"/brokers/seen/{broker}")
        now = entries.get(f"/brokers/ids/{broker}")
        return (
            handled is not None
            and now is not None
            and int(handled.value) == json.loads(now.value)["incarnation"]
        )

    def _require(self, holds: bool, failure: str) -> None:  # noqa: FBT001
        if not holds:
            self._fail(failure)

    def _fail(self, failure: str) -> None:
        # Kept, not raised: this runs in the broker that made the step.
        if self.failure is None:
            self.failure = f"at {self._cluster.loop.clock_ms()} ms: {failure}"

    def raise_failure(self) -> None:
        failure = self.failure or next(iter(self._cluster.unexpected_errors), None)
        if failure is not None:
            raise RunFailed(failure)

    # At the end of a run.

    def find_unhealed(self) -> str | None:
        """What is not as it was before the faults; None when the cluster is healed."""
        reasons = (self._unhealed(key, stored) for key, stored in self.states().items())
        return next((why for why in reasons if why is not None), None) or self._throttle_left()

    def _unhealed(self, key: Partition, stored: _StoredState) -> str | None:
        state = stored.state
        if state["leader"] is None:
            return f"{key} has no leader"
        if state["adding"] or state["removing"]:
            return f"{key} is still moving to {state['replicas']}"
        if set(state["isr"]) != set(state["replicas"]):
            return f"{key}: only {state['isr']} of {state['replicas']} are in sync"
        ends = set()
        for number, broker in self._cluster.brokers.items():
            replica = None if broker.node is None else broker.node.replicas.partitions.get(key)
            is_held = replica is not None and replica.topic_id == stored.topic_id
            if is_held != (number in state["replicas"]):
                return f"{key}: {number} {'still holds' if is_held else 'does not hold'} it"
            if replica is not None:
                ends |= {replica.log.end, replica.high_watermark}
        return f"{key}: ends and watermarks differ: {sorted(ends)}" if len(ends) > 1 else None

    def _throttle_left(self) -> str | None:
        """A throttle that outlived its moves or the tool that holds it, if any."""
        for prefix in ("/admin/throttle_leases/", "/admin/throttle_holds/"):
            for path, _ in self._entries(prefix):
                return f"{path} is still there"
        for path, entry in self._entries("/config/"):
            if b"throttled" in entry.value:
                return f"{path}: a throttle is left behind: {entry.value!r}"
        return None

    def bounds_of(self, partition: Partition) -> tuple[int, int]:
        """The leader's log start and log end offset."""
        leader = self._cluster.brokers[self._states[partition].state["leader"]]
        assert leader.node is not None, "healed"
        log = leader.node.replicas.partitions[partition].log
        return log.start, log.end

    def check_log_start(self, partition: Partition, *, retention_bytes: int) -> None:
        """Only retention deletes the oldest records; what it leaves may be truncated a little."""
        leader = self._cluster.brokers[self._states[partition].state["leader"]]
        assert leader.node is not None, "healed"
        log = leader.node.replicas.partitions[partition].log
        if log.start > 0 and not 0 <= retention_bytes <= 2 * log.size_bytes:
            raise RunFailed(
                f"{partition}: the log of {log.size_bytes} bytes starts at offset {log.start}, "
                f"though retention keeps {retention_bytes} bytes (-1: all)"
            )

    def check_replicas_are_identical(self) -> None:
        for key, stored in self.states().items():
            copies = {}
            for number in stored.state["replicas"]:
                node = self._cluster.brokers[number].node
                assert node is not None, "healed"
                copies[number] = node.replicas.partitions[key]
            start = max(replica.log.start for replica in copies.values())
            end = min(replica.high_watermark for replica in copies.values())
            logs = {number: _bytes_of(replica, start, end) for number, replica in copies.items()}
            if len(set(logs.values())) > 1:
                sizes = {number: len(log) for number, log in logs.items()}
                raise RunFailed(f"{key}: the replicas' logs differ: {sizes}")


def _bytes_of(replica: Replica, start: int, end: int) -> bytes:
    taken, offset = b"", start
    while offset < end:
        result: Any = replica.log.read(offset, 1 << 20, up_to=end, min_one_batch=True, nowait=False)
        taken += bytes(result.data)
        offset = result.next_offset
    return taken

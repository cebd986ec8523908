"""What must hold, whatever happens.

`Witness` knows what clients were told and saw; `Monitor` looks at the store at every step and at
the brokers again and again; `Inspection` looks at the disks when all is over. Everything is
computed here anew, from the store's own bytes and the brokers' own logs, not by asking the rules;
only who is in sync by the policy's verdict (`membership`) is the rules' own word.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from insync.broker.replica import Replica
from insync.rules.values import BrokerId
from insync.sim.cluster import Broker, Cluster
from insync.sim.membership import Memberships

Partition = tuple[str, int]


class LifeFailed(AssertionError):
    """Something that must hold did not."""


@dataclass
class Written:
    """What one producer wrote to one partition."""

    acks: int
    acknowledged: list[bytes] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)


class Witness:
    """What clients were told, and saw."""

    def __init__(self, *, unclean: bool) -> None:
        self._is_unclean = unclean  # then records may be lost, and only that is forgiven
        self.written: dict[tuple[Partition, int], Written] = {}
        self._seen: dict[tuple[Partition, int], bytes] = {}
        self._latest: dict[Partition, int] = {}

    def producer(self, partition: Partition, host: int, *, acks: int) -> Written:
        return self.written.setdefault((partition, host), Written(acks))

    def acknowledged(self) -> int:
        return sum(len(written.acknowledged) for written in self.written.values())

    def saw(self, partition: Partition, offset: int, value: bytes) -> None:
        before = self._seen.setdefault((partition, offset), value)
        if before != value and not self._is_unclean:
            raise LifeFailed(
                f"{partition} offset {offset} was read as {before!r} and is {value!r} now"
            )

    def forget(self, topic: str) -> None:
        """It was deleted."""
        self.written = {key: each for key, each in self.written.items() if key[0][0] != topic}
        self._seen = {key: each for key, each in self._seen.items() if key[0][0] != topic}
        self._latest = {key: each for key, each in self._latest.items() if key[0] != topic}

    def latest_known(self, partition: Partition) -> int:
        return self._latest.get(partition, 0)

    def latest(self, partition: Partition, offset: int, *, known_before: int) -> None:
        """ListOffsets said so, to a question asked when others had already heard `known_before`."""
        if offset < known_before and not self._is_unclean:
            raise LifeFailed(f"{partition}: latest went back from {known_before} to {offset}")
        self._latest[partition] = max(offset, self._latest.get(partition, 0))

    def check(self, partition: Partition, found: list[bytes]) -> None:
        """All that was acknowledged with acks=all is there, everything once and in order."""
        for offset, value in enumerate(found):
            self.saw(partition, offset, value)
        for (where, host), written in self.written.items():
            if where != partition:
                continue
            theirs = [value for value in found if value in written.tried]
            numbers = [int(value.rpartition(b".")[2]) for value in theirs]
            if written.acks == 1:
                # Without sequences, what a cut link held back arrives after what was sent later.
                numbers.sort()
            if not self._is_unclean and numbers != sorted(set(numbers)):
                raise LifeFailed(f"{partition}: producer {host} is not there once and in order")
            if written.acks == -1 and not self._is_unclean:
                there = set(theirs)
                missing = [value for value in written.acknowledged if value not in there]
                if missing:
                    raise LifeFailed(
                        f"{partition}: acknowledged to producer {host} and lost: {missing[:5]}"
                    )


@dataclass
class _Seen:
    """One partition as the store had it last."""

    topic_id: str
    version: int
    state: dict[str, Any]


class Monitor:
    """Looks at every step of the store, and at every broker whenever asked."""

    def __init__(self, cluster: Cluster, *, unclean: bool) -> None:
        self._cluster = cluster
        self._is_unclean = unclean
        self._seen: dict[Partition, _Seen] = {}
        self._sessions: dict[int, list[tuple[str, int, int | None]]] = {}
        self._led: dict[tuple[str, Partition, int], tuple[int, int]] = {}
        self._watermarks: dict[tuple[str, Partition, int], int] = {}
        self._committed: dict[tuple[str, Partition], int] = {}
        self._live: dict[str, int] = {}
        self._resigned_at_ms: dict[str, int] = {}  # by the path that says who cools for what
        self._cooling: set[str] = set()
        self._memberships = Memberships()
        self.failure: str | None = None
        cluster.tree.attach(self)

    def notify(self, revision: int) -> None:
        """The store made a step."""
        self._cluster.note("step", revision)
        self._look_at_sessions()
        self._look_at_states()
        self._look_at_resignations()
        self.look()

    # The store.

    def _entries(self, prefix: str) -> Iterator[tuple[str, Any]]:
        return ((p, e) for p, e in self._cluster.tree.entries.items() if p.startswith(prefix))

    def _look_at_sessions(self) -> None:
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

    def states(self) -> dict[Partition, _Seen]:
        found = {}
        entries = self._cluster.tree.entries
        for path, entry in self._entries("/brokers/topics/"):
            parts = path.split("/")
            if parts[-1] == "state":
                topic = entries["/".join(parts[:4])]
                topic_id = json.loads(topic.value)["topic_id"]
                state = json.loads(entry.value)
                found[parts[3], int(parts[5])] = _Seen(topic_id, entry.version, state)
        return found

    def _look_at_states(self) -> None:
        now = self.states()
        for key, seen in now.items():
            before = self._seen.get(key)
            self._look_at_state(key, seen.state)
            if before is not None and before.topic_id == seen.topic_id:
                self._look_at_change(key, before, seen)
        self._seen = now

    def _look_at_state(self, key: Partition, state: dict[str, Any]) -> None:
        isr, leader = state["isr"], state["leader"]
        self._must(bool(isr), f"{key}: nobody is in sync")
        self._must(len(set(isr)) == len(isr), f"{key}: the ISR {isr} names somebody twice")
        self._must(set(isr) <= set(state["replicas"]), f"{key}: {isr} are not all replicas")
        self._must(leader is None or leader in isr, f"{key}: {leader} leads and is not in {isr}")
        passing = {*state["adding"], *state["removing"]}
        self._must(passing <= set(state["replicas"]), f"{key}: {passing} are not all replicas")

    def _look_at_change(self, key: Partition, before: _Seen, after: _Seen) -> None:
        old, new = before.state, after.state
        self._must(after.version >= before.version, f"{key}: the state's version went back")
        self._must(new["leader_epoch"] >= old["leader_epoch"], f"{key}: the epoch went back")
        if new["leader"] != old["leader"]:
            is_new = new["leader_epoch"] > old["leader_epoch"]
            self._must(is_new, f"{key}: another leader in the same epoch")
        if new != old:
            self._must(after.version > before.version, f"{key}: changed at the same version")
        gone = set(old["replicas"]) - set(new["replicas"])
        if gone:
            is_new = new["leader_epoch"] > old["leader_epoch"]
            self._must(is_new, f"{key}: {gone} left, and may come back empty, in the same epoch")
        if new["leader"] == old["leader"]:
            self._look_at_joining(key, set(new["isr"]) - set(old["isr"]), new["leader"])
        elif new["leader"] is not None and not self._is_unclean:
            self._must(new["leader"] in old["isr"], f"{key}: {new['leader']} was not in sync")

    def _look_at_resignations(self) -> None:
        """One per replica and cool-down at most, however many controllers there were."""
        now_ms = self._cluster.loop.clock_ms()
        cooling = {path for path, _ in self._entries("/cooling/")}
        for path in sorted(cooling - self._cooling):
            since_ms = now_ms - self._resigned_at_ms.get(path, -self._cluster.cooldown_ms)
            self._must(
                since_ms >= self._cluster.cooldown_ms,
                f"{path}: resigned again after {since_ms} ms",
            )
            self._resigned_at_ms[path] = now_ms
        self._cooling = cooling

    def _look_at_joining(self, key: Partition, joined: set[int], leader: int | None) -> None:
        """Who joins must be who its leader let in: not a later incarnation, which may lack more."""
        node = None if leader is None else self._cluster.brokers[leader].node
        found = None if node is None else node.replicas.held.get(key)
        term = None if found is None else found.term
        for member in sorted(joined):
            entry = self._cluster.tree.entries.get(f"/brokers/ids/{member}")
            lives = None if entry is None else json.loads(entry.value)["incarnation"]
            follower = None if term is None else term.followers.get(BrokerId(member))
            self._must(
                follower is None or follower.incarnation == lives,
                f"{key}: {member} joined as {follower and follower.incarnation} and is {lives}",
            )

    # The brokers.

    def look(self) -> None:
        for broker in self._cluster.up():
            if broker.has_started and broker.node is not None:
                for found in broker.node.replicas.held.values():
                    self._look_at(broker, found)

    def _look_at(self, broker: Broker, found: Replica) -> None:
        key, term = found.key, found.term
        seen = self._seen.get(key)
        if term is None or seen is None or seen.topic_id != str(found.topic_id):
            return
        assert broker.node is not None
        if not broker.node.world.store.is_alive(self._cluster.loop.clock_ms()):
            return  # it leads nothing, whatever it still thinks
        epoch = (seen.topic_id, key, term.epoch)
        who = (broker.number, broker.node.replicas.incarnation)
        self._must(
            self._led.setdefault(epoch, who) == who,
            f"{key} epoch {term.epoch} is led by {who} and was led by {self._led[epoch]}",
        )
        watermark = found.high_watermark
        self._must(
            watermark >= self._watermarks.get(epoch, 0),
            f"{key}: the watermark of epoch {term.epoch} fell to {watermark}",
        )
        self._must(watermark <= found.log.end, f"{key}: a watermark beyond the log's end")
        self._watermarks[epoch] = watermark
        self._look_at_members(seen, key, watermark)
        ends = {
            member: self._end_at(self._cluster.brokers[member], key, seen.topic_id)
            for member in seen.state["isr"]
        }
        now_ms = self._cluster.loop.clock_ms()
        for wrong in self._memberships.look(broker, found, ends, now_ms=now_ms):
            self._must(False, wrong)  # noqa: FBT003

    def _look_at_members(self, seen: _Seen, key: Partition, watermark: int) -> None:
        """KAFKA-4485's fourth guarantee, and across leaders: members have all that is committed."""
        if self._is_unclean:
            return
        whose = (seen.topic_id, key)
        committed = self._committed[whose] = max(watermark, self._committed.get(whose, 0))
        for member in seen.state["isr"]:
            end = self._end_at(self._cluster.brokers[member], key, seen.topic_id)
            if end is not None and end < committed:
                self._must(
                    False,  # noqa: FBT003
                    f"{key}: {member} is in sync, ends at {end} and lacks up to {committed}",
                )

    def _end_at(self, broker: Broker, key: Partition, topic_id: str) -> int | None:
        if broker.node is None:
            return broker.ends.get(key)
        if not broker.has_started or not self._is_dealt_with(broker.number):
            return None  # it may have lost something with its former life, and will leave
        found = broker.node.replicas.held.get(key)
        if found is None or str(found.topic_id) != topic_id or found.log.has_failed:
            return None
        return found.log.end

    def _is_dealt_with(self, broker: int) -> bool:
        """Whether a controller has seen its present incarnation."""
        entries = self._cluster.tree.entries
        seen = entries.get(f"/brokers/seen/{broker}")
        now = entries.get(f"/brokers/ids/{broker}")
        return (
            seen is not None
            and now is not None
            and int(seen.value) == json.loads(now.value)["incarnation"]
        )

    def _must(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001
        # Kept rather than raised: this runs inside whatever broker made the step.
        if not holds and self.failure is None:
            self.failure = f"at {self._cluster.loop.clock_ms()} ms: {otherwise}"

    def raise_failure(self) -> None:
        failure = self.failure or next(iter(self._cluster.mishaps), None)
        if failure is not None:
            raise LifeFailed(failure)

    # When all is over.

    def unhealed(self) -> str | None:
        """What is still not as it was before all trouble, if anything."""
        found = (self._unhealed(key, seen) for key, seen in self.states().items())
        return next((each for each in found if each is not None), None) or self._throttle_left()

    def _unhealed(self, key: Partition, seen: _Seen) -> str | None:
        state = seen.state
        if state["leader"] is None:
            return f"{key} has no leader"
        if state["adding"] or state["removing"]:
            return f"{key} is still moving to {state['replicas']}"
        if set(state["isr"]) != set(state["replicas"]):
            return f"{key}: only {state['isr']} of {state['replicas']} are in sync"
        ends = set()
        for number, broker in self._cluster.brokers.items():
            found = None if broker.node is None else broker.node.replicas.held.get(key)
            is_held = found is not None and str(found.topic_id) == seen.topic_id
            if is_held != (number in state["replicas"]):
                return f"{key}: {number} {'still holds' if is_held else 'does not hold'} it"
            if found is not None:
                ends |= {found.log.end, found.high_watermark}
        return f"{key}: ends and watermarks differ: {sorted(ends)}" if len(ends) > 1 else None

    def _throttle_left(self) -> str | None:
        """No throttle outlives its moves, or the tool that holds it."""
        for prefix in ("/admin/throttle_leases/", "/admin/throttle_holds/"):
            for path, _ in self._entries(prefix):
                return f"{path} is still there"
        for path, entry in self._entries("/config/"):
            if b"throttled" in entry.value:
                return f"{path}: a throttle is left behind: {entry.value!r}"
        return None

    def end_of(self, partition: Partition) -> int:
        leader = self._cluster.brokers[self._seen[partition].state["leader"]]
        assert leader.node is not None, "healed"
        return leader.node.replicas.held[partition].log.end

    def check_replicas_are_identical(self) -> None:
        for key, seen in self.states().items():
            copies = {}
            for number in seen.state["replicas"]:
                node = self._cluster.brokers[number].node
                assert node is not None, "healed"
                copies[number] = node.replicas.held[key]
            start = max(found.log.start for found in copies.values())
            end = min(found.high_watermark for found in copies.values())
            logs = {number: _bytes_of(found, start, end) for number, found in copies.items()}
            if len(set(logs.values())) > 1:
                sizes = {number: len(log) for number, log in logs.items()}
                raise LifeFailed(f"{key}: the replicas' logs differ: {sizes}")


def _bytes_of(found: Replica, start: int, end: int) -> bytes:
    taken, offset = b"", start
    while offset < end:
        result: Any = found.log.read(offset, 1 << 20, up_to=end, min_one_batch=True, nowait=False)
        taken += bytes(result.data)
        offset = result.next_offset
    return taken

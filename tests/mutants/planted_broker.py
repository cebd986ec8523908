"""Bugs planted in the broker and the controller."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

PRODUCE = "broker/produce/produce.py"
REPLICAS = "broker/replication/replicas.py"
ISR_COMMITS = "broker/replication/isr_commits.py"
COMMITTED = "tests/broker/replication/test_committed_records.py"
WRITES = "tests/controller/test_partition_state_writes.py"

BROKER = (
    Mutant(
        name="acknowledge-before-replication",
        title="acks=all is acknowledged when the leader has the records",
        breaks="They are lost with the leader.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                PRODUCE,
                "        if replica.high_watermark > last_offset:\n"
                "            on_verdict(replica.judge_committed(last_offset))\n",
                "        if replica.log.end > last_offset:\n"
                "            on_verdict(Verdict.ENOUGH)\n",
            ),
        ),
    ),
    Mutant(
        name="truncate-to-watermark",
        title="A follower truncates to its watermark, not to where its epoch ended",
        breaks="KIP-101: it removes records that are committed, or keeps others.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                "broker/replication/leader_fetcher.py",
                "            leader_says=leader_end,\n",
                "            leader_says=None if leader_end else leader_end,\n",
            ),
        ),
    ),
    Mutant(
        name="first-batch-of-several",
        title="A Produce with several batches for a partition is accepted",
        breaks="Only the first is appended, and all are acknowledged.",
        finders=("tests/broker/produce",),
        edits=(
            Edit(
                PRODUCE,
                "        if next(batches, None) is not None:\n"
                "            raise Refused(ErrorCode.invalid_record, "
                '"more than one batch for the partition")\n'
                "        if header.end_position != len(data):\n"
                '            raise Refused(ErrorCode.corrupt_message, "bytes after the batch")\n',
                "",
            ),
        ),
    ),
    Mutant(
        name="acknowledge-without-session",
        title="A leader that was stopped acknowledges after its session has ended",
        breaks="Another leader was elected meanwhile and lacks the records.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                REPLICAS,
                "return replica if self.store.is_alive(self.loop.clock_ms()) else None",
                "return replica",
            ),
        ),
    ),
    Mutant(
        name="former-incarnation-joins",
        title="Fetches of a former incarnation let a broker into the ISR",
        breaks="The broker of now may have lost what the former one had.",
        is_protocol=True,
        finders=("tests/rules/test_leadership.py", WRITES),
        edits=(
            Edit(
                "rules/membership.py",
                "(Obstacle.STALE_INCARNATION, follower.incarnation != registered),",
                "(Obstacle.STALE_INCARNATION, registered is None),",
            ),
            Edit(
                ISR_COMMITS,
                "incarnation = proposal.followers[broker].incarnation\n"
                "            if self._view.incarnations.get(broker) != incarnation:",
                "incarnation = self._view.incarnations.get(broker)\n"
                "            if incarnation is None:",
            ),
        ),
    ),
    Mutant(
        name="former-incarnation-leads",
        title="A broker leads at once by a state that means its former incarnation",
        breaks="It may lack what that one wrote in the same epoch.",
        is_protocol=True,
        finders=(WRITES,),
        edits=(
            Edit(
                REPLICAS,
                "return seen is not None and int(seen.value) == self.incarnation",
                "return seen is not None and int(seen.value) <= self.incarnation",
            ),
        ),
    ),
    Mutant(
        name="deposed-controller-writes",
        title="A step of the controller is not conditional on its epoch",
        breaks="A deposed controller undoes what the next one decided.",
        finders=(WRITES,),
        edits=(
            Edit(
                "controller/controller.py",
                "return Check(paths.CONTROLLER_EPOCH, self._epoch_version)",
                "return Check(paths.CONTROLLER_EPOCH)",
            ),
        ),
    ),
    Mutant(
        name="consumers-read-uncommitted",
        title="Consumers read up to the end of the log",
        breaks="They see records that the next leader does not have.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                "broker/fetch/pending_fetch.py",
                "up_to = leader_end if is_follower else replica.high_watermark",
                "up_to = leader_end if is_follower else max(leader_end, replica.high_watermark)",
            ),
        ),
    ),
    Mutant(
        name="follower-watermark-beyond-log",
        title="A follower takes the leader's high watermark, though its log ends before it",
        breaks="Once elected it acknowledges and serves what it does not have.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                "broker/replication/replica.py",
                "known = min(high_watermark, self.log.end)",
                "known = max(high_watermark, self.log.end)",
            ),
        ),
    ),
    Mutant(
        name="retention-ignores-watermark",
        title="A broker applies retention up to the end of the log, not to the watermark",
        breaks="A follower finds the records gone that it has to fetch.",
        finders=(COMMITTED,),
        edits=(
            Edit(
                REPLICAS,
                "replica.log.apply_retention(now_ms, up_to=replica.high_watermark)",
                "replica.log.apply_retention(now_ms)",
            ),
        ),
    ),
    Mutant(
        name="watermark-survives-truncation",
        title="A truncation takes the watermark to the end of the log",
        breaks="Records count as committed that no other replica has.",
        is_protocol=True,
        finders=(COMMITTED,),
        edits=(
            Edit(
                "broker/replication/replica.py",
                "    def log_truncated(self) -> None:\n"
                "        self.high_watermark = min(self.high_watermark, self.log.end)\n",
                "    def log_truncated(self) -> None:\n"
                "        self.high_watermark = max(self.high_watermark, self.log.end)\n",
            ),
        ),
    ),
)

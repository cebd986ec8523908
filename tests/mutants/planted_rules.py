"""Bugs planted in the rules."""

from __future__ import annotations

from mutants.mutant import Edit, Mutant

MEMBERSHIP = "rules/membership.py"
MODEL = ("tests/rules/test_leadership.py", "tests/rules/test_guarantees.py")

RULES = (
    Mutant(
        name="join-below-epoch-start",
        title="A follower joins without the start of the leader's epoch",
        breaks="It lacks records that the former leader acknowledged, and may lead.",
        is_protocol=True,
        finders=MODEL,
        edits=(
            Edit(
                MEMBERSHIP,
                "(Obstacle.BELOW_EPOCH_START, follower.end < log.append_times.epoch_start),",
                "(Obstacle.BELOW_EPOCH_START, False),",
            ),
        ),
    ),
    Mutant(
        name="proposed-isr-counts",
        title="The proposed ISR counts for the high watermark, not the maximal one",
        breaks="A member that a pending shrink removes lacks acknowledged records, and may lead.",
        is_protocol=True,
        finders=MODEL,
        edits=(
            Edit(
                MEMBERSHIP,
                "from insync.rules.isr import Isr, maximal\n",
                "from insync.rules.isr import Isr\n"
                "from insync.rules.isr import proposed as maximal\n",
            ),
        ),
    ),
    Mutant(
        name="joining-not-counted",
        title="A follower that a pending expand adds does not count for the high watermark",
        breaks="The store commits the expand, and the new member lacks acknowledged records.",
        is_protocol=True,
        finders=MODEL,
        edits=(
            Edit(
                MEMBERSHIP,
                "counted = maximal(isr).union(pseudo)",
                "counted = isr.members.union(pseudo)",
            ),
        ),
    ),
    Mutant(
        name="watermark-falls",
        title="The high watermark falls with the ends of the ISR",
        breaks="Consumers read records that are gone for the next reader.",
        is_protocol=True,
        finders=MODEL,
        edits=(
            Edit(
                MEMBERSHIP,
                "return Offset(max(current, min(ends[broker] for broker in counted)))",
                "return Offset(max(0, min(ends[broker] for broker in counted)))",
            ),
        ),
    ),
    Mutant(
        name="pseudo-isr-below-epoch-start",
        title="A replica below the epoch's start is in the pseudo-ISR",
        breaks="One bootstrapping replica stops every acks=all producer for T after an election.",
        finders=MODEL,
        edits=(Edit(MEMBERSHIP, "if follower.end >= epoch_start\n        and ", "if "),),
    ),
    Mutant(
        name="pending-reads-admit",
        title="A pending read admits its follower to the ISR",
        breaks="KIP-501: a pending read only keeps a member in; a lagging follower joins.",
        finders=MODEL,
        edits=(
            Edit(
                MEMBERSHIP,
                "(Obstacle.LAGGING, not in_sync(policy, follower, log, now_ms=now_ms)),",
                "(Obstacle.LAGGING, not in_sync(policy, follower, log, now_ms=now_ms)\n"
                "        and not (policy.pending_reads and follower.reads.hold)),",
            ),
        ),
    ),
    Mutant(
        name="late-conflict-settles",
        title="A late Conflict settles a newer pending expand",
        breaks="Records are acknowledged without the follower that the store lets in.",
        is_protocol=True,
        finders=("tests/rules/test_leader_machine.py",),
        edits=(
            Edit(
                "rules/leader_machine.py",
                "        if before != self.change:\n            return state  # this proposal",
                "        if isinstance(before, Stable):\n            return state  # this proposal",
            ),
            Edit(
                "broker/replication/isr_commits.py",
                "            if conflict.path != paths.partition_state(*replica.key):\n"
                "                self._loop.run(self._on_refusal, replica, change)\n",
                "            self._loop.run(self._on_refusal, replica, change)\n",
            ),
        ),
    ),
    Mutant(
        name="stall-evicts-followers",
        title="A stall of the leader counts as lag of its followers",
        breaks="A leader that was stopped evicts healthy followers when it runs again.",
        finders=("tests/rules/test_follower.py",),
        edits=(
            Edit(
                "rules/follower.py",
                "shift_ms = min(stall.length_ms, max(0, forgiven_ms_max - self.forgiven_ms))",
                "shift_ms = min(0, stall.length_ms, max(0, forgiven_ms_max - self.forgiven_ms))",
            ),
            Edit("rules/follower.py", "is_graced=was_in_sync,", "is_graced=was_in_sync and False,"),
        ),
    ),
    Mutant(
        name="unclean-replica-elected",
        title="A replica outside the ISR is elected, though no setting allows it",
        breaks="What it lacks is lost.",
        is_protocol=True,
        finders=("tests/rules/test_election.py",),
        edits=(
            Edit(
                "rules/election.py",
                "if unclean and survivor is not None:",
                "if (unclean or survivor) and survivor is not None:",
            ),
        ),
    ),
    Mutant(
        name="restarted-leader-keeps-epoch",
        title="A leader that restarted leads on in the same epoch",
        breaks="Two incarnations write in one epoch, and the later one may lack the tail.",
        is_protocol=True,
        finders=("tests/rules/test_election.py",),
        edits=(
            Edit(
                "rules/election.py",
                "leader in ended and leader in able:\n        return changed.led_by(leader)",
                "leader in ended and leader in able:\n        return changed",
            ),
        ),
    ),
    Mutant(
        name="restarted-member-stays",
        title="A member of the ISR that restarted stays in it",
        breaks="It may have lost its tail with its power, and may lead.",
        is_protocol=True,
        finders=("tests/rules/test_election.py",),
        edits=(
            Edit(
                "rules/election.py",
                "if broker in isr and not able.isdisjoint(others):",
                "if broker in isr and not able.isdisjoint(others) and broker not in live:",
            ),
        ),
    ),
    Mutant(
        name="divergence-by-offset-only",
        title="The leader compares the follower's end, not the epoch of its last record",
        breaks="A follower keeps records of a former leader; replicas differ (KIP-279).",
        is_protocol=True,
        finders=("tests/rules/test_epochs.py",),
        edits=(
            Edit(
                "rules/epochs.py",
                "if known.epoch < last_fetched_epoch or known.end < fetch_offset:",
                "if known.end < fetch_offset:",
            ),
        ),
    ),
    Mutant(
        name="min-isr-not-rechecked",
        title="Min ISR is not checked again before an acknowledgement",
        breaks="acks=all is acknowledged with fewer copies than min.insync.replicas.",
        finders=("tests/rules/test_acknowledgement.py",),
        edits=(
            Edit(
                "rules/acknowledgement.py",
                "is_enough = len(committed(isr)) >= min_isr",
                "is_enough = len(committed(isr)) >= min(1, min_isr)",
            ),
        ),
    ),
    Mutant(
        name="latest-goes-back",
        title="A new leader answers ListOffsets before its watermark has reached its epoch",
        breaks="KIP-207: latest is lower than what the former leader answered.",
        is_protocol=True,
        finders=("tests/rules/test_leadership.py",),
        edits=(
            Edit(
                "rules/leadership.py",
                "return self.high_watermark >= self.epoch_start",
                "return self.high_watermark >= min(0, self.epoch_start)",
            ),
        ),
    ),
)

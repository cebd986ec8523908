"""One partition as the metadata store holds it, and as the controller changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from insync.rules.values import BrokerId, LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Replicas in order of preference, the ISR and the leader.

    While a reassignment is under way `replicas` holds the target first and then those being
    removed; `adding` and `removing` say which are which.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]  # a leader that resigned is last; elections go by `replicas`
    leader: BrokerId | None  # None: no in-sync replica lives
    leader_epoch: LeaderEpoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    eligible: tuple[BrokerId, ...] = ()  # outside the ISR, with all that acks=all acknowledged

    def __post_init__(self) -> None:
        assert self.isr, "the last in-sync replica stays in the ISR"
        assert set(self.isr) <= set(self.replicas), "only replicas are in sync"
        assert self.leader is None or self.leader in self.isr, "only in-sync replicas lead"
        assert set(self.adding) <= set(self.replicas), "adding replicas are replicas"
        assert set(self.removing) <= set(self.replicas), "removing replicas are replicas"
        assert set(self.eligible) <= set(self.replicas), "eligible replicas are replicas"
        assert not set(self.eligible) & set(self.isr), "eligible replicas are outside the ISR"

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    def led_by(
        self,
        leader: BrokerId | None,
        *,
        isr: tuple[BrokerId, ...] | None = None,
        eligible: tuple[BrokerId, ...] | None = None,
    ) -> PartitionState:
        """A new term: every change of leader, also to none, is a new epoch."""
        return replace(
            self,
            leader=leader,
            isr=self.isr if isr is None else isr,
            eligible=self.eligible if eligible is None else eligible,
            leader_epoch=LeaderEpoch(self.leader_epoch + 1),
        )

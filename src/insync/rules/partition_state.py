"""One partition as the metadata store holds it, and as the controller changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from insync.rules.values import BrokerId, LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Replicas in order of preference, who is in sync, and who leads.

    While a reassignment is under way `replicas` holds the target first and then those being
    removed; `adding` and `removing` say which are which.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]  # who resigned goes last (KIP-501); `replicas` order elects
    leader: BrokerId | None  # None: no in-sync replica lives
    leader_epoch: LeaderEpoch
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    def __post_init__(self) -> None:
        assert self.isr, "the last in-sync replica is never given up"
        assert set(self.isr) <= set(self.replicas), "only replicas are in sync"
        assert self.leader is None or self.leader in self.isr, "only in-sync replicas lead"
        assert set(self.adding) <= set(self.replicas), "adding replicas are replicas"
        assert set(self.removing) <= set(self.replicas), "removing replicas are replicas"

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    def led_by(
        self, leader: BrokerId | None, *, isr: tuple[BrokerId, ...] | None = None
    ) -> PartitionState:
        """A new term: every change of leader, also to none, is a new epoch."""
        return replace(
            self,
            leader=leader,
            isr=self.isr if isr is None else isr,
            leader_epoch=LeaderEpoch(self.leader_epoch + 1),
        )

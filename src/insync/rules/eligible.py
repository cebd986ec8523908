"""Replicas outside the ISR that may still lead without losing what acks=all acknowledged.

When all brokers stop, the ISR shrinks to one member, and the last member is never removed. If that
one comes back damaged, another replica should lead. Which ones may is KIP-966's question:

- While the ISR is smaller than min ISR, nothing is acknowledged with acks=all. So a replica that
  left the ISR in the step that made it smaller than min ISR, or since, has all that was ever
  acknowledged with acks=all. Such a replica is *eligible*.
- KIP-966 stops the high watermark below min ISR; ours moves. So an eligible replica may lack
  records that were written with acks=1 and that consumers have read. It is elected only if every
  ISR member has lost records itself.
- A leader acknowledges nothing with acks=all while the partition state names an eligible replica.
  So `min.insync.replicas` may be lowered at any time: the leader first removes them from the state.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from insync.rules.partition_state import PartitionState
from insync.rules.values import NO_BROKERS, BrokerId


def eligible_after(
    state: PartitionState,
    isr: AbstractSet[BrokerId],
    *,
    min_isr: int,
    lost: AbstractSet[BrokerId] = NO_BROKERS,
) -> tuple[BrokerId, ...]:
    """The eligible replicas once the ISR is `isr`; those in `lost` may have lost records."""
    if len(isr) >= min_isr:
        return ()
    candidates = {*state.eligible, *state.isr} - isr - lost
    return tuple(broker for broker in state.replicas if broker in candidates)

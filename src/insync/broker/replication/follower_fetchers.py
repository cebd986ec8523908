"""Which leaders this broker fetches from: one fetcher for each that leads a replica of this broker.

A broker that leads a thousand partitions followed here costs one connection and one fetch session.
"""

from __future__ import annotations

import asyncio
from functools import partial

from insync.broker.cluster_view import ClusterView, TopicPartition
from insync.broker.quotas.quota_admission import QuotaAdmission
from insync.broker.reads import ReadPool
from insync.broker.replication.leader_fetcher import LeaderFetcher
from insync.broker.replication.replica import Replica
from insync.broker.replication.replicas import Replicas
from insync.broker.settings import Settings
from insync.client.connection import Network
from insync.rules.values import BrokerId


class FollowerFetchers:
    def __init__(
        self,
        *,
        replicas: Replicas,
        view: ClusterView,
        settings: Settings,
        network: Network,
        secret: bytes,
        quota: QuotaAdmission,
        reads: ReadPool,
    ) -> None:
        self._broker = replicas.broker
        self._new_fetcher = partial(
            LeaderFetcher,
            replicas=replicas,
            view=view,
            settings=settings,
            network=network,
            secret=secret,
            quota=quota,
            reads=reads,
        )
        self._fetchers: dict[BrokerId, LeaderFetcher] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}  # by followed partition
        self._has_stopped = False  # nothing is followed any more
        replicas.on_following = self._on_following

    def _on_following(self, replica: Replica) -> None:
        """The replica has another leader or leader epoch, no leader, or leads itself."""
        if self._has_stopped:
            return
        former_leader = self._leaders.pop(replica.key, None)
        # A failed log takes nothing until a restart. One that is to be truncated takes nothing
        # before: it could join the ISR and lead although its beginning is missing.
        damage = replica.log.damage
        is_truncated_first = damage is not None and damage.keep_to is not None
        can_append = not replica.log.has_failed and not is_truncated_first
        is_fetched = replica.leader != self._broker and can_append
        leader = replica.leader if is_fetched else None
        if former_leader is not None and former_leader != leader:
            self._fetchers[former_leader].drop(replica)
        if leader is None:
            return
        if leader not in self._fetchers:
            self._fetchers[leader] = self._new_fetcher(leader)
        self._leaders[replica.key] = leader
        self._fetchers[leader].follow(replica)

    @property
    def held_back(self) -> int:
        """Partitions that wait for the quota."""
        return sum(fetcher.held_back for fetcher in self._fetchers.values())

    def on_quota_changed(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.on_quota_changed()

    async def stop(self) -> None:
        self._has_stopped = True
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

"""Every refusal can happen, is complete in this table, and says one clear line."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

import insync.rules
from insync.rules.reassignment import cancel, start
from insync.rules.refusals import (
    BadPlan,
    BadSetting,
    BadThrottledReplicas,
    NothingToCancel,
    Refusal,
    WouldLoseData,
)
from insync.rules.settings import InSyncSettings, in_sync_rule
from insync.rules.throttled_replicas import parse
from support.rules.partition_states import among, brokers, partition

SETTLED = partition(1, 2, leader=1)
STRANDED = partition(2, 1, isr=(2,), leader=2, adding=(2,), removing=(1,))

PROVOKED: dict[type[Refusal], Callable[[], object]] = {
    BadSetting: lambda: in_sync_rule(InSyncSettings(replica_in_sync_policy="?")),
    BadThrottledReplicas: lambda: parse("0:101,nonsense"),
    BadPlan: lambda: start(SETTLED, brokers(9), known=among(1, 2), live=among(1, 2)),
    NothingToCancel: lambda: cancel(SETTLED, live=among(1, 2), unclean=False),
    WouldLoseData: lambda: cancel(STRANDED, live=among(1, 2), unclean=False),
}


def subclasses(of: type[Refusal]) -> set[type[Refusal]]:
    return {below for kind in of.__subclasses__() for below in (kind, *subclasses(kind))}


def test_the_table_names_every_refusal_of_the_rules() -> None:
    for module in pkgutil.iter_modules(insync.rules.__path__):
        importlib.import_module(f"insync.rules.{module.name}")
    ours = {kind for kind in subclasses(Refusal) if kind.__module__.startswith("insync.rules.")}
    assert set(PROVOKED) == ours


@pytest.mark.parametrize("kind", PROVOKED, ids=lambda kind: kind.__name__)
def test_each_refusal_can_be_provoked_and_has_a_one_line_message(kind: type[Refusal]) -> None:
    with pytest.raises(Refusal) as refusal:
        PROVOKED[kind]()
    assert type(refusal.value) is kind
    message = str(refusal.value)
    assert message.strip()
    assert message.splitlines() == [message]

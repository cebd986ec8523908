"""Settings of topics and brokers: read from the store, and written if unchanged since."""

from __future__ import annotations

from collections.abc import Iterable

from insync.metadata import paths
from insync.metadata.records import TopicRecord, decode_config, encode_config
from insync.metadata.store import Check, CheckAbsent, Create, MetadataStore, Operation, Write
from insync.rules.throttle_lease import Config, Configs
from insync.rules.values import BrokerId


def configs_of(
    store: MetadataStore, *, topics: Iterable[str], brokers: Iterable[BrokerId]
) -> Configs:
    return Configs(
        topics={topic: _config(store, paths.topic_config(topic)) for topic in topics},
        brokers={broker: _config(store, paths.broker_config(broker)) for broker in brokers},
    )


def configs_step(store: MetadataStore, configs: Configs) -> list[Operation]:
    """Write these settings, if the stored ones are still at the versions read now."""
    step: list[Operation] = []
    for topic, config in configs.topics.items():
        step += [_write(store, paths.topic_config(topic), config), _check_same_topic(store, topic)]
    for broker, config in configs.brokers.items():
        step.append(_write(store, paths.broker_config(broker), config))
    return step


def _config(store: MetadataStore, path: str) -> Config:
    entry = store.get(path)
    return {} if entry is None else decode_config(entry.value)


def _write(store: MetadataStore, path: str, config: Config) -> Operation:
    entry = store.get(path)
    value = encode_config(config)
    return Create(path, value) if entry is None else Write(path, value, entry.version)


def _check_same_topic(store: MetadataStore, topic: str) -> Operation:
    """Check that it is the same topic: versions start over with a new topic of the same name."""
    entry = store.get(paths.topic(topic))
    if entry is None:
        return CheckAbsent(paths.topic(topic))
    return Check(paths.topic_id(TopicRecord.decode(entry.value).topic_id))

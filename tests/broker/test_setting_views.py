"""Typed views: they have every setting of the table, and change when settings do."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from insync.broker.setting_views import BrokerSettings, TopicSettings
from insync.broker.settings import BROKER_SETTINGS, TOPIC_SETTINGS, Setting, Settings
from insync.broker.topic_settings import TopicSettingsCache


@pytest.mark.parametrize(
    ("view", "table"), [(BrokerSettings, BROKER_SETTINGS), (TopicSettings, TOPIC_SETTINGS)]
)
def test_a_view_has_the_settings_of_the_table(view: type, table: dict[str, Setting]) -> None:
    types = get_type_hints(view)
    attributes = {field.name.replace("_", "."): types[field.name] for field in fields(view)}
    assert attributes == {setting.name: type(setting.default) for setting in table.values()}


def test_views_have_the_effective_values() -> None:
    settings = Settings({"min.insync.replicas": "2", "log.segment.bytes": "2048"})
    topic = settings.for_topic({"segment.bytes": "4096", "unclean.leader.election.enable": "true"})
    assert topic.topic.log_segment_bytes == 4_096
    assert topic.topic.min_insync_replicas == 2
    assert topic.topic.unclean_leader_election_enable is True
    assert topic.broker == settings.broker, "a topic's values are not the broker's"
    assert settings.broker.log_segment_bytes == settings.topic.log_segment_bytes == 2_048


def test_there_is_a_new_view_after_a_change_only() -> None:
    settings = Settings({})
    before = settings.broker, settings.topic
    assert (settings.broker, settings.topic) == before
    assert settings.broker is before[0]
    assert settings.topic is before[1]
    settings.change(own={"min.insync.replicas": "3"}, everyones={})
    assert settings.broker.min_insync_replicas == settings.topic.min_insync_replicas == 3
    assert before[0].min_insync_replicas == 1


class View:
    """The part of a cluster view that the cache reads."""

    def __init__(self, **topic_configs: dict[str, str]) -> None:
        self.topic_configs = topic_configs


def test_the_settings_of_a_topic_are_computed_once_per_change() -> None:
    settings = Settings({})
    view: Any = View(t={"retention.ms": "5"}, u={"retention.ms": "6"})
    cache = TopicSettingsCache(settings, view)
    first = cache.of_topic("t")
    assert first.log_retention_ms == 5
    assert cache.of_topic("t") is first
    assert cache.of_topic("without") is settings.topic
    view.topic_configs["t"] = {"retention.ms": "7"}
    assert cache.of_topic("t").log_retention_ms == 7
    settings.change(own={"min.insync.replicas": "2"}, everyones={})
    assert cache.of_topic("t").min_insync_replicas == 2
    assert cache.of_topic("without").min_insync_replicas == 2
    del view.topic_configs["t"]
    assert cache.of_topic("t") is settings.topic


def test_the_cache_forgets_deleted_topics() -> None:
    view: Any = View()
    cache = TopicSettingsCache(Settings({}), view)
    for number in range(100):
        view.topic_configs = {f"t{number}": {"retention.ms": "5"}}
        cache.of_topic(f"t{number}")
    assert len(cache._topics) == 1

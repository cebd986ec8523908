"""The settings of every topic, computed once per change of settings.

A throttled-replica list has an entry per partition. Parsing it again for each partition of its
topic would take minutes for a topic of thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from insync.broker.cluster_view import ClusterView
from insync.broker.setting_views import TopicSettings
from insync.broker.settings import Settings


@dataclass(frozen=True, slots=True)
class CachedSettings:
    overrides: Mapping[str, str]  # the object in the view, which replaces it with every change
    settings: Settings


class TopicSettingsCache:
    def __init__(self, settings: Settings, view: ClusterView) -> None:
        self._settings = settings
        self._view = view
        self._revision = settings.revision
        self._topics: dict[str, CachedSettings] = {}

    def of_topic(self, topic: str) -> TopicSettings:
        """The effective settings of a topic, as a typed view."""
        return self.layers_of_topic(topic).topic

    def layers_of_topic(self, topic: str) -> Settings:
        """The effective settings of a topic, as far as this broker understands stored values."""
        overrides = self._view.topic_configs.get(topic)
        if overrides is None:
            return self._settings
        if self._revision != self._settings.revision:
            self._revision = self._settings.revision
            self._topics.clear()
        cached = self._topics.get(topic)
        if cached is None or cached.overrides is not overrides:
            cached = CachedSettings(overrides, self._settings.for_stored_topic(overrides))
            self._topics[topic] = cached
            self._forget_deleted_topics()
        return cached.settings

    def _forget_deleted_topics(self) -> None:
        configs = self._view.topic_configs
        if len(self._topics) > len(configs):
            self._topics = {
                topic: self._topics[topic] for topic in self._topics if topic in configs
            }

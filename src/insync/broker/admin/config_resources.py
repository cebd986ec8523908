"""The resources that have settings in the store: topics, one broker, and all brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from insync.metadata import paths
from insync.rules.values import BrokerId
from insync.wire.configs import Resource

SettingsTable = Mapping[str, Setting]


class ConfigRefused(Exception):
    """The error that answers a request to describe or alter the settings of a resource."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResource:
    name: str

    @property
    def path(self) -> str:
        return paths.topic_config(self.name)

    @property
    def table(self) -> SettingsTable:
        return TOPIC_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerResource:
    broker: BrokerId | None  # None: the default of all brokers

    @property
    def path(self) -> str:
        return paths.broker_config(self.broker)

    @property
    def table(self) -> SettingsTable:
        return BROKER_SETTINGS


ALL_BROKERS = BrokerResource(broker=None)
ConfigResource = TopicResource | BrokerResource


class ConfigResources:
    """Finds the resource that a request names.

    Requests about one broker go to that broker, as Kafka's clients send them: no other broker
    knows its properties file.
    """

    def __init__(self, *, broker: BrokerId, view: ClusterView) -> None:
        self._broker = broker
        self._view = view

    def find(self, resource_type: int, name: str) -> ConfigResource:
        if resource_type == Resource.TOPIC:
            if name not in self._view.topics:
                raise ConfigRefused(
                    ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}"
                )
            return TopicResource(name=name)
        if resource_type != Resource.BROKER:
            raise ConfigRefused(
                ErrorCode.invalid_request, f"resources of type {resource_type} have no settings"
            )
        if name not in ("", str(self._broker)):
            raise ConfigRefused(
                ErrorCode.invalid_request,
                f"this is broker {self._broker}; send requests about broker {name!r} to that "
                "broker, or leave the name empty for the default of all brokers",
            )
        return BrokerResource(broker=self._broker) if name else ALL_BROKERS

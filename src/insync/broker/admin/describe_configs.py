"""DescribeConfigs: the settings of topics and brokers, and the source of each value."""

from __future__ import annotations

from typing import Any

from insync.broker.admin.config_resources import (
    ALL_BROKERS,
    BrokerResource,
    ConfigRefused,
    ConfigResource,
    ConfigResources,
    TopicResource,
)
from insync.broker.cluster_view import ClusterView
from insync.broker.settings import Settings
from insync.broker.settings_table import text_of
from insync.wire.any_version import Values
from insync.wire.configs import ConfigSource


class DescribeConfigs:
    def __init__(self, resources: ConfigResources, view: ClusterView, settings: Settings) -> None:
        self._resources = resources
        self._view = view
        self._settings = settings

    def answer(self, request: Any, _version: int) -> Values:
        # A resource that is named repeatedly is described once: answers are much larger than
        # requests.
        requested = {
            (resource.resource_type, resource.resource_name): resource
            for resource in request.resources
        }
        return {"results": [self._result(resource, request) for resource in requested.values()]}

    def _result(self, requested: Any, request: Any) -> Values:
        result = {
            "resource_type": requested.resource_type,
            "resource_name": requested.resource_name,
        }
        try:
            resource = self._resources.find(requested.resource_type, requested.resource_name)
        except ConfigRefused as refused:
            return {**result, "error_code": refused.code, "error_message": refused.message}
        configs = self._describe(
            resource, with_documentation=getattr(request, "include_documentation", False)
        )
        return {
            **result,
            "configs": [
                config if request.include_synonyms else {**config, "synonyms": ()}
                for config in configs
                if not requested.configuration_keys
                or config["name"] in requested.configuration_keys
            ],
        }

    def _describe(self, resource: ConfigResource, *, with_documentation: bool) -> list[Values]:
        settings = self._settings
        names = sorted(resource.table)
        if isinstance(resource, TopicResource):
            settings = settings.for_stored_topic(self._view.topic_configs.get(resource.name, {}))
        elif resource == ALL_BROKERS:
            # As Kafka does: only what was set for all brokers.
            names = [name for name in names if name in self._view.broker_configs.get(None, {})]
        configs: list[Values] = []
        for name in names:
            setting = resource.table[name]
            sources = settings.sources(setting.name)
            if resource == ALL_BROKERS:
                sources = [entry for entry in sources if entry[0] != ConfigSource.DYNAMIC_BROKER]
            source, value = sources[0]
            configs.append(
                {
                    "name": name,
                    "value": text_of(value),
                    "read_only": isinstance(resource, BrokerResource) and not setting.is_dynamic,
                    "config_source": source,
                    "is_default": source == ConfigSource.DEFAULT,
                    "synonyms": [
                        {
                            "name": name if source == ConfigSource.TOPIC else setting.name,
                            "value": text_of(value),
                            "source": source,
                        }
                        for source, value in sources
                    ],
                    "config_type": setting.kind,
                    "documentation": setting.doc if with_documentation else None,
                }
            )
        return configs

"""Changes of stored settings: of topics, of one broker, and of all brokers.

A change is one step of the store, conditional on the version that it changes. It is checked as a
whole before: every value by itself, and the combination of all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from insync.broker.admin.config_resources import (
    ConfigRefused,
    ConfigResource,
    ConfigResources,
    SettingsTable,
    TopicResource,
)
from insync.broker.admin.topics import ATTEMPTS_MAX
from insync.broker.cluster_view import PROPAGATION_MAX_S, ClusterView
from insync.broker.replication.in_sync import concerns_rule, rule_of
from insync.broker.settings import Settings
from insync.broker.settings_table import BROKER_SETTINGS
from insync.metadata import paths
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import decode_config, encode_config
from insync.metadata.store import Check, Create, MetadataStore, Operation, Write
from insync.rules.refusals import BadSetting
from insync.rules.values import BrokerId
from insync.wire.any_version import Values

StoredConfig = Mapping[str, str]
ComputeConfig = Callable[[Any, StoredConfig, SettingsTable], dict[str, str]]
"""The new config of a resource, from the settings that the request names and the stored config."""


class ConfigChanges:
    def __init__(
        self,
        *,
        broker: BrokerId,
        resources: ConfigResources,
        store: MetadataStore,
        view: ClusterView,
        settings: Settings,
    ) -> None:
        self._broker = broker
        self._resources = resources
        self._store = store
        self._view = view
        self._settings = settings

    async def change_all(self, request: Any, compute: ComputeConfig) -> Values:
        """Change every resource of the request, each in a step of its own."""
        times_named = Counter(
            (resource.resource_type, resource.resource_name) for resource in request.resources
        )
        results = []
        for requested in request.resources:
            resource_type, name = requested.resource_type, requested.resource_name
            result = {"resource_type": resource_type, "resource_name": name}
            try:
                if times_named[resource_type, name] > 1:
                    raise ConfigRefused(
                        ErrorCode.invalid_request, "the resource is named twice in one request"
                    )
                _refuse_repeated_names(requested.configs)
                warnings = await self._change(
                    requested, compute, validate_only=request.validate_only
                )
            except ConfigRefused as refused:
                result |= {"error_code": refused.code, "error_message": refused.message}
            except BadSetting as refusal:
                result |= {"error_code": ErrorCode.invalid_config, "error_message": str(refusal)}
            else:
                result |= {"error_message": "; ".join(warnings) or None}
            results.append(result)
        if not request.validate_only:
            # A client may ask another broker next, and does not expect the old value.
            await asyncio.sleep(PROPAGATION_MAX_S)
        return {"responses": results}

    async def _change(
        self, requested: Any, compute: ComputeConfig, *, validate_only: bool
    ) -> Sequence[str]:
        """Commit the change, again if another change came first. Returns warnings."""
        for _ in range(ATTEMPTS_MAX):
            resource = self._resources.find(requested.resource_type, requested.resource_name)
            entry = self._store.get(resource.path)
            before = {} if entry is None else decode_config(entry.value)
            after = compute(requested.configs, before, resource.table)
            warnings = self._check(resource, before, after)
            if validate_only or after == before:
                return warnings
            value = encode_config(after)
            step: list[Operation] = [
                Create(resource.path, value)
                if entry is None
                else Write(resource.path, value, entry.version)
            ]
            if isinstance(resource, TopicResource):
                # If the topic is deleted meanwhile, a later topic of this name must not get these
                # settings.
                step.append(Check(paths.topic_id(self._view.topics[resource.name].topic_id)))
            try:
                await self._store.commit(*step)
            except Conflict:
                continue
            except Unavailable as unavailable:
                raise ConfigRefused(ErrorCode.request_timed_out, str(unavailable)) from None
            return warnings
        raise ConfigRefused(ErrorCode.request_timed_out, "other changes kept coming first")

    def _check(
        self, resource: ConfigResource, before: StoredConfig, after: StoredConfig
    ) -> Sequence[str]:
        """Refuse settings that are invalid, alone or together. Returns warnings."""
        if isinstance(resource, TopicResource):
            settings = self._settings.for_topic(after)
            return rule_of(settings).warnings if concerns_rule(after) else ()
        for name in after:
            if not BROKER_SETTINGS[name].is_dynamic and after[name] != before.get(name):
                raise BadSetting(
                    f"{name} is read at start only; set it in the broker's properties file and "
                    "restart the broker"
                )
        stored = self._view.broker_configs
        if resource.broker is None:
            candidate = self._settings.at_run_time(
                own=stored.get(self._broker, {}), everyones=after
            )
        else:
            candidate = self._settings.at_run_time(own=after, everyones=stored.get(None, {}))
        warnings = rule_of(candidate).warnings
        self._check_topics(candidate)
        return warnings

    def _check_topics(self, candidate: Settings) -> None:
        """Refuse settings of brokers that a topic's own settings contradict."""
        for topic, overrides in sorted(self._view.topic_configs.items()):
            if concerns_rule(overrides):
                try:
                    rule_of(candidate.for_stored_topic(overrides))
                except BadSetting as refusal:
                    raise BadSetting(f"topic {topic}, by its own settings: {refusal}") from None


def _refuse_repeated_names(configs: Sequence[Any]) -> None:
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigRefused(ErrorCode.invalid_request, "a setting is named twice")

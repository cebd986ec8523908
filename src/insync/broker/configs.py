"""Settings told and changed while brokers run: of topics, of one broker, and of all brokers.

What was set is in the store; a change is one step there, conditional on what it builds on, and is
checked whole before: every value by itself, and what they mean together. Who asks about one broker
asks that broker, as Kafka's clients do: only it knows its own file.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import LEARNT_WITHIN_S, ClusterView
from insync.broker.in_sync import concerns_rule, rule_of
from insync.broker.settings import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    Settings,
    find,
    text_of,
)
from insync.broker.topics import ATTEMPTS_MAX
from insync.metadata import paths
from insync.metadata.errors import Conflict, Unavailable
from insync.metadata.records import decode_config, encode_config
from insync.metadata.store import Check, Create, MetadataStore, Operation, Write
from insync.rules.refusals import BadSetting
from insync.rules.values import BrokerId
from insync.wire.any_version import Values
from insync.wire.configs import Alteration, ConfigSource, Resource

Stored = Mapping[str, str]
Table = Mapping[str, Setting]


NEVER_SET = frozenset({"replica.alter.log.dirs.io.max.bytes.per.second"})
"""Brokers here have one log directory. Kafka's tool deletes it with the throttles it takes away, in
one request: refusing this would leave those behind."""


class ConfigRefused(Exception):
    """What a client is told when settings cannot be had, or be, as asked."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTopic:
    name: str

    @property
    def path(self) -> str:
        return paths.topic_config(self.name)

    @property
    def table(self) -> Table:
        return TOPIC_SETTINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class OfBroker:
    broker: BrokerId | None  # None: of all of them

    @property
    def path(self) -> str:
        return paths.broker_config(self.broker)

    @property
    def table(self) -> Table:
        return BROKER_SETTINGS


Owner = OfTopic | OfBroker


class Configs:
    def __init__(
        self, *, broker: BrokerId, store: MetadataStore, view: ClusterView, settings: Settings
    ) -> None:
        self._broker = broker
        self._store = store
        self._view = view
        self._settings = settings

    def _owner(self, kind: int, name: str) -> Owner:
        if kind == Resource.TOPIC:
            if name not in self._view.topics:
                raise ConfigRefused(
                    ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}"
                )
            return OfTopic(name=name)
        if kind != Resource.BROKER:
            raise ConfigRefused(
                ErrorCode.invalid_request, f"resources of type {kind} have no settings here"
            )
        if name not in ("", str(self._broker)):
            raise ConfigRefused(
                ErrorCode.invalid_request,
                f"this is broker {self._broker}; ask broker {name!r} about itself, "
                "or any broker, without a name, about the default of all",
            )
        return OfBroker(broker=self._broker if name else None)

    # Telling.

    def describe(self, request: Any, _version: int) -> Values:
        # Once each, however often they are named: an answer is many times its question.
        asked = {(each.resource_type, each.resource_name): each for each in request.resources}
        return {"results": [self._described(each, request) for each in asked.values()]}

    def _described(self, asked: Any, request: Any) -> Values:
        named = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        try:
            owner = self._owner(asked.resource_type, asked.resource_name)
        except ConfigRefused as refused:
            return {**named, "error_code": refused.code, "error_message": refused.message}
        known = self._told(
            owner, with_documentation=getattr(request, "include_documentation", False)
        )
        return {
            **named,
            "configs": [
                each if request.include_synonyms else {**each, "synonyms": ()}
                for each in known
                if not asked.configuration_keys or each["name"] in asked.configuration_keys
            ],
        }

    def _told(self, owner: Owner, *, with_documentation: bool) -> list[Values]:
        settings = self._settings
        names = sorted(owner.table)
        if isinstance(owner, OfTopic):
            settings = settings.for_stored_topic(self._view.topic_configs.get(owner.name, {}))
        elif owner.broker is None:
            # As Kafka has it: only what was set for all.
            names = [name for name in names if name in self._view.broker_configs.get(None, {})]
        told: list[Values] = []
        for name in names:
            setting = owner.table[name]
            sources = settings.sources(setting.name)
            if owner == OfBroker(broker=None):
                sources = [each for each in sources if each[0] != ConfigSource.DYNAMIC_BROKER]
            source, value = sources[0]
            told.append(
                {
                    "name": name,
                    "value": text_of(value),
                    "read_only": isinstance(owner, OfBroker) and not setting.is_dynamic,
                    "config_source": source,
                    "is_default": source == ConfigSource.DEFAULT,
                    "synonyms": [
                        {
                            "name": name if each == ConfigSource.TOPIC else setting.name,
                            "value": text_of(value),
                            "source": each,
                        }
                        for each, value in sources
                    ],
                    "config_type": setting.kind,
                    "documentation": setting.doc if with_documentation else None,
                }
            )
        return told

    # Changing.

    async def replace(self, request: Any) -> Values:
        """AlterConfigs: what is not named goes back to where it comes from otherwise."""

        def changed(asked: Any, _before: Stored, table: Table) -> dict[str, str]:
            return {each.name: _given(each, table) for each in asked.configs}

        return await self._change_all(request, changed)

    async def alter(self, request: Any) -> Values:
        """IncrementalAlterConfigs: what is not named stays."""

        def changed(asked: Any, before: Stored, table: Table) -> dict[str, str]:
            after = dict(before)
            for each in asked.configs:
                _alter(after, each, table)
            return after

        return await self._change_all(request, changed)

    async def _change_all(
        self, request: Any, changed: Callable[[Any, Stored, Table], dict[str, str]]
    ) -> Values:
        asked = Counter((each.resource_type, each.resource_name) for each in request.resources)
        results = []
        for each in request.resources:
            named = {"resource_type": each.resource_type, "resource_name": each.resource_name}
            try:
                if asked[each.resource_type, each.resource_name] > 1:
                    raise ConfigRefused(ErrorCode.invalid_request, "named twice in one request")
                _refuse_repeated(each.configs)
                warnings = await self._change(each, changed, validate_only=request.validate_only)
            except ConfigRefused as refused:
                named |= {"error_code": refused.code, "error_message": refused.message}
            except BadSetting as refusal:
                named |= {"error_code": ErrorCode.invalid_config, "error_message": str(refusal)}
            else:
                named |= {"error_message": "; ".join(warnings) or None}
            results.append(named)
        if not request.validate_only:
            # Clients ask any broker next, and many do not ask twice.
            await asyncio.sleep(LEARNT_WITHIN_S)
        return {"responses": results}

    async def _change(
        self,
        asked: Any,
        changed: Callable[[Any, Stored, Table], dict[str, str]],
        *,
        validate_only: bool,
    ) -> Sequence[str]:
        """Make the step, anew when another change came first; returns what to be warned of."""
        for _ in range(ATTEMPTS_MAX):
            owner = self._owner(asked.resource_type, asked.resource_name)
            entry = self._store.get(owner.path)
            before = {} if entry is None else decode_config(entry.value)
            after = changed(asked, before, owner.table)
            warnings = self._checked(owner, before, after)
            if validate_only or after == before:
                return warnings
            value = encode_config(after)
            step: list[Operation] = [
                Create(owner.path, value)
                if entry is None
                else Write(owner.path, value, entry.version)
            ]
            if isinstance(owner, OfTopic):
                # Else settings could be left behind for a later topic of this name.
                step.append(Check(paths.topic_id(self._view.topics[owner.name].topic_id)))
            try:
                await self._store.commit(*step)
            except Conflict:
                continue
            except Unavailable as unavailable:
                raise ConfigRefused(ErrorCode.request_timed_out, str(unavailable)) from None
            return warnings
        raise ConfigRefused(ErrorCode.request_timed_out, "other changes kept coming first")

    def _checked(self, owner: Owner, before: Stored, after: Stored) -> Sequence[str]:
        """Whether these settings have a meaning, each and together; what to be warned of."""
        if isinstance(owner, OfTopic):
            settings = self._settings.for_topic(after)
            return rule_of(settings).warnings if concerns_rule(after) else ()
        for name in after:
            if not BROKER_SETTINGS[name].is_dynamic and after[name] != before.get(name):
                raise BadSetting(
                    f"{name} is read at start only; write it into the broker's file and restart it"
                )
        stored = self._view.broker_configs
        if owner.broker is None:
            candidate = self._settings.at_run_time(
                own=stored.get(self._broker, {}), everyones=after
            )
        else:
            candidate = self._settings.at_run_time(own=after, everyones=stored.get(None, {}))
        warnings = rule_of(candidate).warnings
        self._check_topics(candidate)
        return warnings

    def _check_topics(self, candidate: Settings) -> None:
        """A topic's own settings may contradict what a broker is to have."""
        for topic, overrides in sorted(self._view.topic_configs.items()):
            if concerns_rule(overrides):
                try:
                    rule_of(candidate.for_stored_topic(overrides))
                except BadSetting as refusal:
                    raise BadSetting(f"topic {topic}, by its own settings: {refusal}") from None


def _refuse_repeated(configs: Sequence[Any]) -> None:
    names = [each.name for each in configs]
    if len(set(names)) < len(names):
        raise ConfigRefused(ErrorCode.invalid_request, "a setting is named twice")


def _given(asked: Any, table: Table) -> str:
    """The value asked for, as it is stored."""
    setting = find(asked.name, table)
    if asked.value is None:
        raise ConfigRefused(ErrorCode.invalid_request, f"{asked.name} is given no value")
    return text_of(setting.parse(asked.value))


def _alter(config: dict[str, str], asked: Any, table: Table) -> None:
    """Do one alteration to what is stored."""
    name, operation = asked.name, asked.config_operation
    if operation == Alteration.DELETE:
        if config.pop(name, None) is None and name not in NEVER_SET:
            find(name, table)  # not set is fine; not there at all is a mistake
    elif operation == Alteration.SET:
        config[name] = _given(asked, table)
    elif operation in (Alteration.APPEND, Alteration.SUBTRACT):
        if not find(name, table).is_list:
            raise BadSetting(f"{name} is no list: nothing can be added to it or taken from it")
        items = [each for each in config.get(name, "").split(",") if each]
        named = _given(asked, table).split(",")
        if operation == Alteration.APPEND:
            items += [each for each in named if each not in items]
        else:
            items = [each for each in items if each not in named]
        config[name] = text_of(find(name, table).parse(",".join(items)))
    else:
        raise ConfigRefused(ErrorCode.invalid_request, f"there is no operation {operation}")

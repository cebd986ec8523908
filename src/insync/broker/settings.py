"""The settings of a broker and its topics, in layers.

A value comes from the first layer that has one: the topic's own, set for this broker at run time,
set for all brokers at run time, the properties file, the default. All parts of a broker share one
`Settings`, so a change applies to the next read. Code that reads settings often uses the typed
views `Settings.broker` and `Settings.topic`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from insync.broker.setting_views import BrokerSettings, TopicSettings, build_view
from insync.broker.settings_table import (
    BROKER_SETTINGS,
    INT_MAX,
    LONG_MAX,
    MIB,
    SETTINGS,
    TOPIC_SETTINGS,
    Scope,
    Setting,
    Value,
    find,
    refuse_before_run_time,
    text_of,
)
from insync.rules.refusals import BadSetting
from insync.wire.configs import ConfigSource

__all__ = [
    "BROKER_SETTINGS",
    "INT_MAX",
    "LONG_MAX",
    "MIB",
    "SETTINGS",
    "TOPIC_SETTINGS",
    "Scope",
    "Setting",
    "Settings",
    "find",
    "parse_properties",
    "refuse_before_run_time",
    "text_of",
]

logger = logging.getLogger(__name__)

Layers = dict[ConfigSource, dict[str, Value]]

# The first layer that has a value decides. Defaults come last.
PRECEDENCE: Final = (
    ConfigSource.TOPIC,
    ConfigSource.DYNAMIC_BROKER,
    ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigSource.STATIC_BROKER,
)
BROKER_PRECEDENCE: Final = PRECEDENCE[1:]  # without the layer of a topic


class Settings:
    """The settings of a broker, or of a topic on this broker, in layers."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        refuse_before_run_time(properties, BROKER_SETTINGS)
        self._layers: Layers = {ConfigSource.STATIC_BROKER: _parse_all(properties, BROKER_SETTINGS)}
        self.revision = 0  # it grows with every change
        self._broker_view: BrokerSettings | None = None
        self._topic_view: TopicSettings | None = None
        self._merge()

    def __getitem__(self, name: str) -> Value:
        return _value_or_default(self._values, name)

    def is_given(self, name: str) -> bool:
        """Whether any layer has a value; otherwise the default applies."""
        return name in self._values

    def sources(self, name: str) -> list[tuple[ConfigSource, Value]]:
        """The value of every layer that has one: first the one that decides, last the default."""
        values = [
            (source, self._layers[source][name])
            for source in PRECEDENCE
            if name in self._layers.get(source, ())
        ]
        default = SETTINGS[name].default
        return values if default is None else [*values, (ConfigSource.DEFAULT, default)]

    @property
    def broker(self) -> BrokerSettings:
        """The broker's settings as a typed view, without the values of a topic."""
        if self._broker_view is None:
            values = self._merge_layers(BROKER_PRECEDENCE)
            self._broker_view = build_view(
                BrokerSettings, lambda name: _value_or_default(values, name)
            )
        return self._broker_view

    @property
    def topic(self) -> TopicSettings:
        """The settings of a topic as a typed view; for a broker's `Settings`, the defaults."""
        if self._topic_view is None:
            self._topic_view = build_view(TopicSettings, self.__getitem__)
        return self._topic_view

    def integer(self, name: str) -> int:
        value = self[name]
        assert isinstance(value, int), f"{name} is no number"
        return value

    def flag(self, name: str) -> bool:
        value = self[name]
        assert isinstance(value, bool), f"{name} is no flag"
        return value

    def text(self, name: str) -> str:
        value = self[name]
        assert isinstance(value, str), f"{name} is no text"
        return value

    def for_topic(self, overrides: Mapping[str, str]) -> Settings:
        """These settings with a topic's own values. Raises BadSetting for an invalid one."""
        return self._with({ConfigSource.TOPIC: _parse_all(overrides, TOPIC_SETTINGS)})

    def for_stored_topic(self, overrides: Mapping[str, str]) -> Settings:
        """These settings with the values that the store has for a topic, except invalid ones."""
        return self._with({ConfigSource.TOPIC: _parse_valid(overrides, TOPIC_SETTINGS)})

    def at_run_time(self, *, own: Mapping[str, str], everyones: Mapping[str, str]) -> Settings:
        """These settings if these were set at run time, for this broker and for all brokers."""
        return self._with(
            {
                ConfigSource.DYNAMIC_BROKER: _parse_all(own, BROKER_SETTINGS),
                ConfigSource.DYNAMIC_DEFAULT_BROKER: _parse_all(everyones, BROKER_SETTINGS),
            }
        )

    def from_file(self) -> Settings:
        """The settings with which this broker was started."""
        return self._with({source: {} for source in PRECEDENCE[:-1]})

    def change(self, *, own: Mapping[str, str], everyones: Mapping[str, str]) -> None:
        """Replace what was set at run time, for this broker and for all brokers.

        The values come from the store, where a broker of another version may have written them.
        Settings that this version does not know, or reads at start only, are ignored.
        """
        for source, config in (
            (ConfigSource.DYNAMIC_BROKER, own),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, everyones),
        ):
            values = _parse_valid(config, BROKER_SETTINGS)
            self._layers[source] = {
                name: value for name, value in values.items() if SETTINGS[name].is_dynamic
            }
        self.revision += 1
        self._merge()

    def _with(self, layers: Layers) -> Settings:
        other = Settings({})
        other._layers = {**self._layers, **layers}
        other._merge()
        return other

    def _merge(self) -> None:
        self._values = self._merge_layers(PRECEDENCE)
        self._broker_view = None
        self._topic_view = None

    def _merge_layers(self, precedence: Sequence[ConfigSource]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for source in reversed(precedence):
            values |= self._layers.get(source, {})
        return values


def _value_or_default(values: Mapping[str, Value], name: str) -> Value:
    value = values.get(name, SETTINGS[name].default)
    assert value is not None, f"{name} has neither value nor default"
    return value


def _parse_all(config: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Value]:
    values = {}
    for name, text in config.items():
        setting = find(name, table)
        values[setting.name] = setting.parse(text)
    return values


def _parse_valid(config: Mapping[str, str], table: Mapping[str, Setting]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, text in config.items():
        try:
            values |= _parse_all({name: text}, table)
        except BadSetting as refusal:
            logger.warning(
                "settings: a stored value is ignored: %s; change it with insync configs",
                refusal,
            )
    return values


def parse_properties(text: str) -> dict[str, str]:
    """Parse a properties file: `key=value` lines, `#` and `!` comments; the last value counts."""
    properties: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise BadSetting(f"line {number}: {line!r} is not of the form key=value")
        properties[name.strip()] = value.strip()
    return properties

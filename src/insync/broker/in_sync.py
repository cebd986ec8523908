"""Which rule a topic's leaders apply: from a broker's settings and the topic's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from insync.broker.settings import TOPIC_SETTINGS, Settings
from insync.rules.refusals import BadSetting
from insync.rules.settings import InSyncRule, InSyncSettings, in_sync_rule

logger = logging.getLogger(__name__)

_FIELDS: Final = {field.name.replace("_", "."): field for field in fields(InSyncSettings)}


def rule_of(settings: Settings) -> InSyncRule:
    """The rule these settings ask for; a combination without a meaning is refused."""
    given: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        # To those that may be left out, saying nothing is not the same as saying the default.
        may_be_unset = field.default is None
        if settings.is_given(name) or not may_be_unset:
            given[field.name] = settings[name]
    return in_sync_rule(InSyncSettings(**given))


def concerns_rule(overrides: Mapping[str, str]) -> bool:
    """Whether a topic with these settings may have a rule of its own."""
    return any(
        name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].name in _FIELDS for name in overrides
    )


class Rules:
    """The rules of one broker's topics. What there is to say about them is said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of_topic(self, topic: str, merged: Settings, broker: Settings) -> InSyncRule:
        """The topic's, or as much of it as has a meaning together with the broker's own.

        A topic, and what is set for all brokers, is refused what contradicts the broker that is
        asked. Another broker's file may say something else, and it has to lead all the same.
        """
        rule = self._rule_of(merged, f"{topic}: its own settings are left aside")
        rule = rule or self._rule_of(broker, "what was set at run time is left aside")
        rule = rule or rule_of(broker.from_file())
        for warning in rule.warnings:
            self._say(warning)
        return rule

    def _rule_of(self, settings: Settings, or_else: str) -> InSyncRule | None:
        try:
            return rule_of(settings)
        except BadSetting as refusal:
            self._say(f"{or_else}: {refusal}")
            return None

    def _say(self, warning: str) -> None:
        if warning not in self._said:
            self._said.add(warning)
            logger.warning("%s", warning)

"""Which rule a topic's leaders apply: from a broker's settings and the topic's own."""

from __future__ import annotations

import logging

from insync.broker.settings import Settings
from insync.rules.refusals import BadSetting
from insync.rules.settings import InSyncRule, InSyncSettings, in_sync_rule

logger = logging.getLogger(__name__)


def rule_of(settings: Settings) -> InSyncRule:
    """The rule these settings ask for; a combination without a meaning is refused."""
    flag = settings.given.get("follower.fetch.pending.reads.insync.enable")
    process_time_max_ms = settings.given.get("follower.fetch.process.time.max.ms")
    assert flag is None or isinstance(flag, bool), "the table parses it so"
    assert process_time_max_ms is None or isinstance(process_time_max_ms, int), "likewise"
    return in_sync_rule(
        InSyncSettings(
            replica_in_sync_policy=settings.text("replica.in.sync.policy"),
            replica_lag_time_max_ms=settings.integer("replica.lag.time.max.ms"),
            replica_lag_max_messages=settings.integer("replica.lag.max.messages"),
            replica_fetch_wait_max_ms=settings.integer("replica.fetch.wait.max.ms"),
            follower_fetch_pending_reads_insync_enable=flag,
            follower_fetch_process_time_max_ms=process_time_max_ms,
        )
    )


class Rules:
    """The rules of one broker's topics. What there is to say about them is said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def of_topic(self, topic: str, merged: Settings, broker: Settings) -> InSyncRule:
        """The topic's, or the broker's own where the two contradict each other.

        A topic is refused what contradicts the broker that is asked. Another broker may have been
        given something else, and has to lead it all the same.
        """
        try:
            rule = rule_of(merged)
        except BadSetting as refusal:
            self._say(f"{topic}: its own settings are left aside: {refusal}")
            rule = rule_of(broker)
        for warning in rule.warnings:
            self._say(warning)
        return rule

    def _say(self, warning: str) -> None:
        if warning not in self._said:
            self._said.add(warning)
            logger.warning("%s", warning)

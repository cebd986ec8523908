"""What the rules refuse, as one small tree.

A refusal is the world's mistake (an operator's flag, a plan, a stored value) and its message
says what to change. Our own mistakes are `assert`s.
"""


class Refusal(ValueError):
    """A request or a setting that the rules do not allow."""


class BadSetting(Refusal):
    """A setting, or a combination of settings, that has no meaning."""


class BadThrottledReplicas(BadSetting):
    """A throttled-replica list that cannot be read."""


class BadPlan(Refusal):
    """A reassignment plan that names replicas, brokers or partitions it cannot."""


class NothingToCancel(Refusal):
    """No reassignment of this partition is under way."""


class WouldLoseData(Refusal):
    """A step that would leave no in-sync replica behind."""

"""What a replication quota decides for fetches, and the twin that admits everything.

A leader admits the records of each response; a follower reserves bytes for each request. A broker
without a throttle runs the same code with the twins `NoQuota` and `UNTHROTTLED`.
"""

from __future__ import annotations

from typing import Final, Protocol

from insync.rules.throttling import Treatment

Partition = tuple[str, int]


class Waiter(Protocol):
    """A fetch session of a leader, or a fetcher of a follower, that may wait for a quota."""

    def has_room(self) -> None:
        """The quota may have bytes for this waiter: try again."""


class ResponseAdmission(Protocol):
    """The admission of one fetch response. Bytes count when the response is sent, not before."""

    @property
    def is_open(self) -> bool:
        """Whether nothing has been refused yet. What comes after a refusal waits too."""

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment: ...

    def room_bytes(self, left_bytes: int) -> int:
        """Of the bytes that the response has left, those to read for a limited partition."""

    def admit(self, size_bytes: int) -> bool:
        """Admit records of a limited partition, or make the fetch wait for the quota."""

    def count_in_sync(self, size_bytes: int) -> None:
        """Count records of a throttled replica that is in sync: they are never held back."""

    def on_sent(self) -> None:
        """The response is sent with everything that was admitted."""


class QuotaAdmission(Protocol):
    """One side, leader or follower, of a broker's quota."""

    @property
    def is_set(self) -> bool:
        """Whether any replica is throttled on this side."""

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment: ...

    def response(self, waiter: Waiter) -> ResponseAdmission:
        """As leader: the admission of one response to this waiter."""

    def reserve(self, waiter: Waiter, requested_bytes: int, *, batch_bytes_max: int) -> int:
        """As follower: bytes to request now. If 0, the waiter is notified when there are some."""

    def settle(self, reserved_bytes: int, received_bytes: int) -> None:
        """As follower: a reservation ends. Its answer brought these bytes, or there is none."""

    def count_in_sync(self, size_bytes: int) -> None:
        """As follower: count bytes received for an in-sync replica."""

    def leave(self, waiter: Waiter) -> None:
        """The waiter needs nothing more."""


class UnthrottledResponse:
    """Admits everything and counts nothing."""

    is_open: Final = True

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:  # noqa: ARG002
        return Treatment.FREE

    def room_bytes(self, left_bytes: int) -> int:
        return left_bytes

    def admit(self, size_bytes: int) -> bool:  # noqa: ARG002
        return True

    def count_in_sync(self, size_bytes: int) -> None:
        pass

    def on_sent(self) -> None:
        pass


UNTHROTTLED: Final = UnthrottledResponse()


class NoQuota:
    """A quota that never throttles anything."""

    is_set: Final = False

    def treatment(self, partition: Partition, *, is_in_sync: bool) -> Treatment:  # noqa: ARG002
        return Treatment.FREE

    def response(self, waiter: Waiter) -> ResponseAdmission:  # noqa: ARG002
        return UNTHROTTLED

    def reserve(self, waiter: Waiter, requested_bytes: int, *, batch_bytes_max: int) -> int:  # noqa: ARG002
        return requested_bytes

    def settle(self, reserved_bytes: int, received_bytes: int) -> None:
        pass

    def count_in_sync(self, size_bytes: int) -> None:
        pass

    def leave(self, waiter: Waiter) -> None:
        pass

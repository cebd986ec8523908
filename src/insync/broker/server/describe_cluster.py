"""DescribeCluster: the live brokers, the controller and the cluster's id."""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.wire.any_version import Values

ENDPOINT_TYPE_BROKERS: Final = 1


class DescribeCluster:
    def __init__(self, view: ClusterView, cluster_id: str) -> None:
        self._view = view
        self._cluster_id = cluster_id

    def answer(self, request: Any, _version: int) -> Values:
        if getattr(request, "endpoint_type", ENDPOINT_TYPE_BROKERS) != ENDPOINT_TYPE_BROKERS:
            return {
                "error_code": ErrorCode.mismatched_endpoint_type,
                "error_message": "This cluster has no controller endpoints; ask for brokers.",
            }
        return {
            "cluster_id": self._cluster_id,
            "controller_id": controller_id(self._view),
            "brokers": [
                {"broker_id": b.broker, "host": b.host, "port": b.port, "rack": b.rack}
                for b in self._view.brokers.values()
            ],
        }


def controller_id(view: ClusterView) -> int:
    """-1 while there is no controller."""
    return -1 if view.controller is None else view.controller

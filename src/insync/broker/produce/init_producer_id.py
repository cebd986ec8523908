"""InitProducerId: a new producer id for an idempotent producer; transactions are refused."""

from __future__ import annotations

import logging
from typing import Any, Final

from kio.schema.errors import ErrorCode

from insync.broker.produce.producer_ids import ProducerIds
from insync.rules.refusals import Refusal
from insync.wire.any_version import Values

NO_PRODUCER_ID: Final = {"producer_id": -1, "producer_epoch": -1}

logger = logging.getLogger(__name__)


class InitProducerId:
    def __init__(self, producer_ids: ProducerIds) -> None:
        self._producer_ids = producer_ids

    async def answer(self, request: Any) -> Values:
        if request.transactional_id is not None:
            return {
                **NO_PRODUCER_ID,
                "error_code": ErrorCode.transactional_id_authorization_failed,
            }
        try:
            producer_id = await self._producer_ids.next()
        except Refusal as refusal:  # by the store; Apache Kafka answers with the same code
            logger.info(
                "this broker could not allocate a producer id: %s; the client tries again", refusal
            )
            return {**NO_PRODUCER_ID, "error_code": ErrorCode.coordinator_load_in_progress}
        return {"producer_id": producer_id, "producer_epoch": 0}

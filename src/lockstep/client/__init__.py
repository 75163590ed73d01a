"""The client. `lockstep.connect` and `lockstep.connect_async` create it."""

from lockstep.client._async.client import AsyncClient
from lockstep.client._async.consumer import AsyncConsumer
from lockstep.client._async.delivery import AsyncDeliveredMessage, AsyncDelivery
from lockstep.client._async.producer import AsyncProducer
from lockstep.client._async.transaction import AsyncTransaction
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._payloads import new_message
from lockstep.client._received import Committed
from lockstep.client._sync.client import Client
from lockstep.client._sync.consumer import Consumer
from lockstep.client._sync.delivery import DeliveredMessage, Delivery
from lockstep.client._sync.producer import Producer
from lockstep.client._sync.transaction import Transaction
from lockstep.client._sync.transport import Transport

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDeliveredMessage",
    "AsyncDelivery",
    "AsyncProducer",
    "AsyncTransaction",
    "AsyncTransport",
    "Client",
    "Committed",
    "Consumer",
    "DeliveredMessage",
    "Delivery",
    "Producer",
    "Transaction",
    "Transport",
    "new_message",
]

"""A model that never stops learning, published for servers: whole exports, deltas, and how they are taken over."""

from sparsegroup.errors import require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.publishing.destinations import Destination, open_destination
from sparsegroup.publishing.publisher import Publisher
from sparsegroup.publishing.releases import PublishError, Release
from sparsegroup.publishing.subscriber import Served, Subscriber

__all__ = [
    "Destination",
    "PublishError",
    "Publisher",
    "Release",
    "Served",
    "Subscriber",
    "open_destination",
]

document_constructors(globals())

"""The providers of buckets, by name: what is known of them before their code, in ``files.providers``, is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class ProviderWords(NamedTuple):
    """Names that belong to a provider.

    Attributes:
        folder: the package with its code, imported when it is needed.
        queue_type: the type of its queues.
        sql_queue_type: that type in SQL as other platforms have it.
        aliases: further schemes of its locations.
    """

    folder: str
    queue_type: str
    sql_queue_type: str
    aliases: tuple[str, ...] = ()


#: By the scheme of its locations, which is also the type of connections to it, and the extra that installs its packages.
PROVIDERS: Mapping[str, ProviderWords] = {
    "az": ProviderWords("volstream.files.providers.azure", "storagequeue", "AZURE_STORAGE_QUEUE", aliases=("abfs", "abfss")),
    "gs": ProviderWords("volstream.files.providers.google", "pubsub", "GCP_PUBSUB"),
    "oss": ProviderWords("volstream.files.providers.alibaba", "mns", "ALICLOUD_MNS"),
    "s3": ProviderWords("volstream.files.providers.aws", "sqs", "AWS_SQS", aliases=("s3a",)),
}

"""Microsoft Azure: Blob Storage and Storage Queues.

A location names a container and, after ``@``, the address of its account, unless the connection determines
it. With an address of Data Lake Storage (``.dfs.``), the account may have a hierarchical namespace.
"""

from __future__ import annotations

import re

from volstream.files.providers.base import DOTS, Provider

#: Matches the end of Azure's host names, in all of its clouds. Only these hosts get Azure's tokens.
DOMAINS = r"(?:core\.(?:windows\.net|chinacloudapi\.cn|usgovcloudapi\.net)|storage\.azure\.net)"

PROVIDER = Provider(
    folder=__name__,
    scheme="az",
    queue_type="storagequeue",
    package="azure.storage.blob",
    buckets=re.compile(
        rf"(\$root|\$web|[a-z0-9](?:-?[a-z0-9]){{2,62}})(?:@[a-z0-9]{{3,24}}\.(?:[a-z0-9]+\.)?(?:blob|dfs)\.{DOMAINS})?"
    ),
    role="00000000-0000-0000-0000-000000000000",
    sources=("env", "static"),
    writes_reports=False,
    unwired=(
        "A storage account does not report its event subscriptions.",
        "Look at the storage account's event subscriptions in the portal, or use --canary.",
    ),
    # Azure reads a backslash as a slash and would find another blob.
    unaskable=re.compile(rf"{DOTS}|[\\\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]"),
)

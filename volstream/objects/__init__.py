"""The operations on objects, one collection a kind: what CLI, SQL and Python all call.

A collection resolves names, takes leases and calls the domain; rules are the domain's. Names are text, as users write them.
"""

from volstream.objects.batches import Batches
from volstream.objects.connections import Connections
from volstream.objects.dynamic import DynamicTables
from volstream.objects.functions import Functions
from volstream.objects.jobs import Jobs
from volstream.objects.streams import Streams
from volstream.objects.volumes import Volumes

__all__ = ["Batches", "Connections", "DynamicTables", "Functions", "Jobs", "Streams", "Volumes"]

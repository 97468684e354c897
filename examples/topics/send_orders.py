"""Sends orders to the topic ``orders`` of the broker in the environment: ``python send_orders.py [--new-topic] COUNT``."""

from __future__ import annotations

import json
import os
import sys

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PRODUCTS = ("lamp", "chair", "table")


def main() -> None:
    brokers = {"bootstrap.servers": os.environ["BROKER"]}
    if "--new-topic" in sys.argv:
        admin = AdminClient(brokers)  # kept, because it ends its requests when it goes
        admin.create_topics([NewTopic("orders", 2)])["orders"].result()
    producer = Producer(brokers)
    for number in range(int(sys.argv[-1])):
        product = PRODUCTS[number % len(PRODUCTS)]
        order = {"product": product, "quantity": 1 + number % 2, "customer": f"customer-{number % 7}"}
        producer.produce("orders", key=order["customer"], value=json.dumps(order))
    producer.flush()


if __name__ == "__main__":
    main()

"""Tables that are filled event by event, item by item, or from files and topics."""

"""What operators see: status, alerts, lineage, backups."""

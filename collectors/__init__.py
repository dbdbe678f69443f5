"""Numbers in: sources that answer the Prometheus query API, and what the field's signals are called there."""

"""What leaves the lake: tables, datasets with their cards, logs of Inspect AI, OpenTelemetry traces."""

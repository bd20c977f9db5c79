"""Live memory telemetry for training runs."""

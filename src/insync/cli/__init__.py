"""The `insync` command: one module per command, and one place that renders what they answer."""

"""Rule tables, one module per section of the upstream config tree."""

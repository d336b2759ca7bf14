"""What people look at and are woken by: a dashboard, alert rules and their runbook, made of the
table of metrics."""

"""From logs to the artifact: tables (JSONL to CSV), figures (CSV to SVG and PNG) and claims (CSV to verdicts)."""

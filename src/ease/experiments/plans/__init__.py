"""What to run: studies, and the tables and figures of the paper."""

"""Studies: a learner on a stream becomes a record, and records become tables, curves and a report."""

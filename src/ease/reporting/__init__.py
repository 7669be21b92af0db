"""Records as tables, figures and pages. Nothing is run here."""

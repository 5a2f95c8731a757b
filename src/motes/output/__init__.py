"""Output of answers and scores: tables, overlays, plots, HTML reports."""

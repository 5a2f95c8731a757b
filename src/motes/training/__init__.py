"""Training: from clips and a configuration to a run folder."""

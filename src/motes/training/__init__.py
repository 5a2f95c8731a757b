"""Training: from clips and a configuration to a run folder."""

import motes.models.model  # noqa: F401 (registers the families, which presets name)

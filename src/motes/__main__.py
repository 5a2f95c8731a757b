"""`python -m motes` is `motes`."""

import sys

from motes.cli import main

sys.exit(main())

"""`python -m insync` is the same as `insync`."""

import sys

from insync.cli.main import main

sys.exit(main())

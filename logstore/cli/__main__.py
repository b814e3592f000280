"""`python -m logstore.cli` is the `logstore` command."""

import sys

from logstore.cli import main

sys.exit(main())

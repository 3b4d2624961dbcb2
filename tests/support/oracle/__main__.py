"""`python -m support.oracle`."""

import sys

from support.oracle.run import main

sys.exit(main())

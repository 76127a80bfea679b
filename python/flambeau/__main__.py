"""`python -m flambeau`, which is the program `flambeau`."""

import sys

from flambeau._cli import main

sys.exit(main())

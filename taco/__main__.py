"""`python -m taco` and `torchrun -m taco`."""

import sys

from taco.cli import main

sys.exit(main())

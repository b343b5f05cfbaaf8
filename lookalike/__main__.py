"""The `lookalike` command, as console script and as `python -m lookalike`."""

import os
import sys

from lookalike.own_packages import PACKAGES, ROOT, secure

# The console script has no working folder on its path either. Processes that a command starts get the path.
if __name__ == "__main__" and not sys.flags.safe_path and os.path.realpath(sys.path[0]) != ROOT:
    del sys.path[0]
for _package in PACKAGES:
    secure(_package)

from retrieval.cli import main  # noqa: E402  ours, whatever else has the name

if __name__ == "__main__":
    main()

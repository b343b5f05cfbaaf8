"""Training: data sets, input pipeline, models, losses and the training loop.

Importing this package does not import torch; sub-modules that need torch do.
"""

import retrieval as _retrieval  # noqa: F401  sets OpenMP variables, which must precede torch

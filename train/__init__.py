"""Training: data sets, batches, losses and the loop. Sub-modules that need torch import it themselves."""

import retrieval as _retrieval  # noqa: F401  its settings for OpenMP must come before torch

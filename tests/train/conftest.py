"""One thread for every test here: small networks are quicker so, and sums come in the same order."""

import torch

torch.set_num_threads(1)

"""One torch thread for all tests here: small networks are slower with more."""

import torch

torch.set_num_threads(1)

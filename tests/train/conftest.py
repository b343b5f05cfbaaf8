"""One torch thread for all tests here: faster for small networks, and a fixed order of summation."""

import torch

torch.set_num_threads(1)

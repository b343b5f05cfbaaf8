"""Tests of pytorch-metric-learning 2.9 (commit 216a792, MIT, see LICENSE), unchanged; `test_pml_suite` runs them."""

import torch

TEST_DEVICE = torch.device("cpu")
TEST_DTYPES = [torch.float32, torch.float64]  # our losses return float32 for float16
WITH_COLLECT_STATS = False

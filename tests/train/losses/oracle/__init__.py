"""Independent float64 references of every loss: plain loops over the formulas of the papers, no torch."""

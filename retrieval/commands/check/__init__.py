"""`lookalike check`: what is wrong with the images of a gallery and their labels."""

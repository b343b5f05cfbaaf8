"""What is wrong with the images of a gallery: duplicates, leakage, suspected labels, quality."""

"""What a gallery keeps on disk, and how it stays whole."""

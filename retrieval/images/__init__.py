"""Images: loading, preprocessing, multi-threaded decoding, and checks for decompression bombs."""

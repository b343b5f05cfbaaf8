"""Images: loading, preprocessing, decoding ahead of the model, and limits on hostile files."""

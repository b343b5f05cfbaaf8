"""Teaching: a linear layer learned on the stored vectors of a gallery, measured on held-out images."""

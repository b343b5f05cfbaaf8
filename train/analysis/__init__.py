"""What the papers draw of losses and of training: plain arrays first, then the figure of them."""

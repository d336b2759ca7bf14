"""How a token is drawn: csrc/sample's arithmetic in numpy, bit for bit."""

"""Deep Compression (Han, Mao, Dally 2016, arXiv 1510.00149): prunes, shares and encodes weights."""

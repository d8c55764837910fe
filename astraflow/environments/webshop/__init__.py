"""WebShop (arXiv:2207.01206): the shop as an environment, its pages and its reward."""

"""Checks of recipes, plugins, rewards and this machine: `check`, `calibrate` and `doctor`."""

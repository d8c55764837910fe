"""Simulation of runs in virtual time, the test bench of every rule."""

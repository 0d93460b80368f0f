"""CUDA graphs of steps that are functions of arrays on a device alone."""

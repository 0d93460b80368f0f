"""The schedules of gather and scatter, for kernels of `cuda_src/indexed`."""

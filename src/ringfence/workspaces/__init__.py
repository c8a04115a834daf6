"""Files crossing the boundary, in both directions, always through directory descriptors."""

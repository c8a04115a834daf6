"""What the AIO-compatible surface knows beside its routes: sessions, commands, paths and failures as AIO has them."""

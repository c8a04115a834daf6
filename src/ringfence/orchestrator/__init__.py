"""The fixed pipeline every operation passes; the only caller of executors."""

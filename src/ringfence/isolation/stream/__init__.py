"""Workers that are reached over one byte stream alone: what containers of any engine have in common."""

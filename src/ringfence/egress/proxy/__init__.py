"""The allow-list proxy: what code in a box without a route reaches, through the one socket it was given."""

"""What containers of the sandbox start from: its recipe, its archive, its bill of materials, its age."""

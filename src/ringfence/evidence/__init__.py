"""What a record of an execution says, and how anybody can check it: values in, values out."""

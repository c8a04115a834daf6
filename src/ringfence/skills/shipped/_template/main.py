"""Counts the words of a text: a skill reads its inputs as JSON and prints its outputs as JSON."""

import json
import sys

inputs = json.load(sys.stdin)
print(json.dumps({"words": len(inputs["text"].split())}))

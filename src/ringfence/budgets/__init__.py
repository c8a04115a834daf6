"""How much may be used in all: reserve before a run, hold the run to it, settle what it used, scope by scope."""

"""How dangerous a call looks before it runs, and which isolation that demands: a hint that raises walls, never one."""

#!/bin/sh
# Pid 1 of a container that is given no other: tini passes signals on and reaps what the command leaves behind.
set -eu
[ $# -gt 0 ] || set -- bash
[ $$ -ne 1 ] || exec tini -g -- "$@"
exec "$@"   # the engine's own init (--init) is there already

#!/bin/sh
# In place of ssh, for mpirun in the cluster: launcher.sh [-OPTION] NODE COMMAND...
# $CLUSTER has a file for each node, with the number of a process in its namespaces.
while [ "${1#-}" != "$1" ]; do shift; done
pid=$(cat "$CLUSTER/$1")
shift
exec nsenter -t "$pid" -m -u -i -n "--pid=/proc/$pid/ns/pid_for_children" sh -c "$*"

#!/bin/sh
# The first process of a node, in namespaces of its own: node.sh NAME ADDRESS/BITS MTU
# It sets up the node around itself, and then takes in processes whose parents have ended, as every first one must.
set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
hostname "$1"
ip link set lo up
echo namespaces
read -r _  # the network device is here
ip link set tap name eth0 mtu "$3"
ip address add "$2" dev eth0
ip link set eth0 up
echo up
exec </dev/null >/dev/null
sleep infinity &
wait

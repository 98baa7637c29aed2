#!/bin/sh
# On a Linux router beside the nodes: three ways to reach a shared address that is in no subnet.
# Usage: static-routes.sh on-link | next-hop | nodes
shared=198.51.100.10
interface=eth1
case ${1:-} in
  # The router asks for the address by ARP, and the active node answers with the virtual MAC.
  on-link) ip route replace "$shared/32" dev "$interface" ;;
  # A second shared address, of the outside subnet, is the next hop: add it to `cluster.addresses`.
  next-hop) ip route replace "$shared/32" via 203.0.113.10 ;;
  # The nodes themselves are the next hops. Nothing withdraws a dead one: use BIRD (bird-router.conf) for that.
  nodes)
    sysctl -w net.ipv4.fib_multipath_hash_policy=1
    ip route replace "$shared/32" nexthop via 203.0.113.1 nexthop via 203.0.113.2 nexthop via 203.0.113.3
    ;;
  *)
    echo "usage: $0 on-link | next-hop | nodes" >&2
    exit 2
    ;;
esac

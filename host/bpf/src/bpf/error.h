/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* ICMP errors about segments that we sent: only the node that has the flow can use them, and without "packet too big" a
 * client behind a narrower link would get nothing that is large. */
#pragma once
#include "owner.h"

enum { ICMP_UNREACHABLE = 3, ICMP_TIME_EXCEEDED = 11, ICMP_PARAMETER = 12, ICMPV6_QUERIES = 128 };

struct ports { __be16 local, remote; };

/* What the error is about, as far as its key is concerned: a segment from us to the peer. */
static __always_inline bool read_about_v4(struct __sk_buff *skb, struct flow_key *k, struct ports *ports)
{
	struct iphdr ip;
	__u8 type;
	if (bpf_skb_load_bytes(skb, 34, &type, 1)
	    || (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER))
		return false;
	if (bpf_skb_load_bytes(skb, 42, &ip, sizeof ip) || ip.ihl != 5 || ip.protocol != IPPROTO_TCP
	    || ip.frag_off & bpf_htons(0x1fff) || bpf_skb_load_bytes(skb, 62, ports, sizeof *ports))
		return false;
	k->local_addr[2] = k->remote_addr[2] = bpf_htonl(0xffff);
	k->local_addr[3] = ip.saddr;
	k->remote_addr[3] = ip.daddr;
	return true;
}

static __always_inline bool read_about_v6(struct __sk_buff *skb, struct flow_key *k, struct ports *ports)
{
	struct ipv6hdr ip;
	__u8 type;
	if (bpf_skb_load_bytes(skb, 54, &type, 1) || type >= ICMPV6_QUERIES)
		return false;
	if (bpf_skb_load_bytes(skb, 62, &ip, sizeof ip) || ip.nexthdr != IPPROTO_TCP
	    || bpf_skb_load_bytes(skb, 102, ports, sizeof *ports))
		return false;
	__builtin_memcpy(k->local_addr, ip.saddr, 16);
	__builtin_memcpy(k->remote_addr, ip.daddr, 16);
	return true;
}

/* Whether the packet is such an error, and which bucket it is about. */
static __always_inline bool error_about(struct __sk_buff *skb, const struct packet *p, __u32 *bucket)
{
	struct flow_key k = {};
	struct ports ports = {};
	bool is = p->protocol == IPPROTO_ICMP ? read_about_v4(skb, &k, &ports)
		: p->protocol == IPPROTO_ICMPV6 && read_about_v6(skb, &k, &ports);
	k.local_port = ports.local;
	k.remote_port = ports.remote;
	return is && role_of(&k, bucket) >= ROLE_LISTENER;
}

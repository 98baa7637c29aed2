/* ARP and neighbour discovery for our addresses: the designated node answers with the virtual MAC, nobody else says a
 * word. The kernel's own answers are stopped at egress, since they would carry the card's MAC. */
#pragma once
#include "owner.h"

static __always_inline struct address_info *address_v4(const __u8 ip[4])
{
	struct address a = {};
	a.ip[2] = bpf_htonl(0xffff);
	__builtin_memcpy(&a.ip[3], ip, 4);
	return bpf_map_lookup_elem(&addresses, &a);
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	for (int i = 0; i < 6; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* Link header of an answer. Steer mode: coming from the virtual MAC, it tells the switch where that MAC lives. Flood
 * mode: the switch must never learn it. */
static __always_inline void answer_link(struct __sk_buff *skb, const __u8 *virtual_mac)
{
	__u8 macs[12], *source = (__u8 *)virtual_mac;
	bpf_skb_load_bytes(skb, 6, macs, 6);
	if (flood) {
		struct peer from = { skb->ifindex, 0 };
		struct mac *ours = bpf_map_lookup_elem(&peers, &from);
		if (ours)
			source = ours->mac;
	}
	__builtin_memcpy(macs + 6, source, 6);
	bpf_skb_store_bytes(skb, 0, macs, 12, 0);
}

static __always_inline int ingress_arp(struct __sk_buff *skb)
{
	struct arp a;
	if (bpf_skb_load_bytes(skb, 14, &a, sizeof a) || a.protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	struct address_info *info = address_v4(a.target_ip);
	if (!info || a.operation != bpf_htons(1))
		return TC_ACT_OK;
	/* another node's announcement is no question */
	if (*(__u32 *)a.sender_ip == *(__u32 *)a.target_ip || !node || !may_speak(info->bucket)) {
		count(NEIGHBOUR_HELD);
		return node ? TC_ACT_SHOT : TC_ACT_OK;
	}
	__u8 ip[4];
	__builtin_memcpy(ip, a.target_ip, 4);
	__builtin_memcpy(a.target_mac, a.sender_mac, 10);
	__builtin_memcpy(a.sender_mac, info->mac, 6);
	__builtin_memcpy(a.sender_ip, ip, 4);
	a.operation = bpf_htons(2);
	answer_link(skb, info->mac);
	bpf_skb_store_bytes(skb, 14, &a, sizeof a, 0);
	count(NEIGHBOUR_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

enum { SOLICITATION = 135, ADVERTISEMENT = 136, ADVERTISEMENT_FRAME = 14 + 40 + 32, BARE_SOLICITATION = 24 };

static __always_inline int advertise(struct __sk_buff *skb, struct neighbour *n, const __u8 *virtual_mac)
{
	struct ipv6hdr ip;
	if (bpf_skb_load_bytes(skb, 14, &ip, sizeof ip))
		return TC_ACT_SHOT;
	if (skb->len != ADVERTISEMENT_FRAME && bpf_skb_change_tail(skb, ADVERTISEMENT_FRAME, 0))
		return TC_ACT_SHOT;
	__builtin_memcpy(ip.daddr, ip.saddr, 16);
	__builtin_memcpy(ip.saddr, n->target, 16);
	ip.payload_len = bpf_htons(sizeof *n);
	n->type = ADVERTISEMENT;
	n->flags = bpf_htonl(0x60000000);	/* solicited, override */
	n->option = 2;				/* target link-layer address */
	n->option_len = 1;
	__builtin_memcpy(n->mac, virtual_mac, 6);
	n->check = 0;
	__u64 sum = bpf_csum_diff(0, 0, ip.saddr, 32, bpf_htonl(sizeof *n + IPPROTO_ICMPV6));
	n->check = fold(bpf_csum_diff(0, 0, (__be32 *)n, sizeof *n, sum));
	answer_link(skb, virtual_mac);
	bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, 0);
	bpf_skb_store_bytes(skb, 54, n, sizeof *n, 0);
	count(NEIGHBOUR_ANSWERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Whether the solicitation comes from this link and as it was sent (RFC 4861, section 7.1.1). Reads its option; with more
 * than the one that hosts put there it is not summed up. */
static __always_inline bool is_sound(struct __sk_buff *skb, struct neighbour *n)
{
	struct ipv6hdr ip;
	if (bpf_skb_load_bytes(skb, 14, &ip, sizeof ip) || ip.hop_limit != 255 || n->code)
		return false;
	__u32 len = bpf_ntohs(ip.payload_len);
	if (len >= sizeof *n && bpf_skb_load_bytes(skb, 54 + BARE_SOLICITATION, &n->option, sizeof *n - BARE_SOLICITATION))
		return false;
	if (len != BARE_SOLICITATION && len != sizeof *n)
		return len > sizeof *n;
	__u64 sum = bpf_csum_diff(0, 0, ip.saddr, 32, bpf_htonl(len + IPPROTO_ICMPV6));
	return !fold(bpf_csum_diff(0, 0, (__be32 *)n, sizeof *n, sum));
}

/* ICMPv6 on its way in; negative: not a question for one of our addresses. */
static __always_inline int ingress_solicitation(struct __sk_buff *skb, struct packet *p)
{
	struct neighbour n = {};
	if (bpf_skb_load_bytes(skb, 54, &n, BARE_SOLICITATION) || n.type != SOLICITATION)
		return -1;
	struct address_info *info = bpf_map_lookup_elem(&addresses, n.target);
	if (!info || !node)
		return -1;
	/* a host that only checks whether the address is free (source unspecified) is left without an answer */
	if (!(p->key.remote_addr[0] | p->key.remote_addr[1] | p->key.remote_addr[2] | p->key.remote_addr[3])
	    || !is_sound(skb, &n) || !may_speak(info->bucket)) {
		count(NEIGHBOUR_HELD);
		return TC_ACT_SHOT;
	}
	return advertise(skb, &n, info->mac);
}

static __always_inline int egress_arp(struct __sk_buff *skb)
{
	struct arp a;
	if (!node || bpf_skb_load_bytes(skb, 14, &a, sizeof a) || a.protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	struct address_info *info = address_v4(a.sender_ip);
	if (!info || (same_mac(a.sender_mac, info->mac) && may_speak(info->bucket)))
		return TC_ACT_OK;
	count(NEIGHBOUR_HELD);
	return TC_ACT_STOLEN;
}

/* ICMPv6 on its way out: false when it speaks for an address of ours without the right to. */
static __always_inline bool advertisement_allowed(struct __sk_buff *skb)
{
	struct neighbour n = {};
	if (bpf_skb_load_bytes(skb, 54, &n, 24) || n.type != ADVERTISEMENT)
		return true;
	struct address_info *info = bpf_map_lookup_elem(&addresses, n.target);
	if (!info)
		return true;
	if (bpf_skb_load_bytes(skb, 54, &n, sizeof n) || !same_mac(n.mac, info->mac))
		return false;
	return may_speak(info->bucket);
}

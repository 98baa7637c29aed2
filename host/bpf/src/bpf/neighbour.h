/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* ARP and neighbour discovery for our addresses: the designated node answers with the virtual MAC, all others are
 * silent. The kernel's own answers are stopped at egress, since they would carry the card's MAC.
 *
 * A request shows the asker's own card, and a host that has an entry updates it (RFC 826; RFC 4861, section 7.2.3).
 * Else a host with a new card would be reached at the old one for half a minute. So every node's kernel gets the
 * request as an answer of the asker: it updates an existing entry, makes no new one, and sends nothing. */
#pragma once
#include "owner.h"

static __always_inline struct address_info *address_v4(const __u8 ip[4])
{
	struct address a = {};
	a.ip[2] = bpf_htonl(0xffff);
	__builtin_memcpy(&a.ip[3], ip, 4);
	return bpf_map_lookup_elem(&addresses, &a);
}

/* Sends the answer that was written over the question; the link header stays the question's. Steer mode: coming from
 * the virtual MAC, the answer shows the switch where that MAC is. Flood mode: the switch must never learn it. */
static __always_inline void send_answer(struct __sk_buff *skb, const __u8 *virtual_mac)
{
	__u8 asked[12], macs[12], *source = (__u8 *)virtual_mac;
	bpf_skb_load_bytes(skb, 0, asked, 12);
	if (flood) {
		struct peer from = { skb->ifindex, 0 };
		struct mac *ours = bpf_map_lookup_elem(&peers, &from);
		if (ours)
			source = ours->mac;
	}
	__builtin_memcpy(macs, asked + 6, 6);
	__builtin_memcpy(macs + 6, source, 6);
	bpf_skb_store_bytes(skb, 0, macs, 12, 0);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	bpf_skb_store_bytes(skb, 0, asked, 12, 0);
	count(NEIGHBOUR_ANSWERED);
}

static __always_inline void answer_arp(struct __sk_buff *skb, struct arp a, const __u8 *virtual_mac)
{
	__u8 ip[4];
	__builtin_memcpy(ip, a.target_ip, 4);
	__builtin_memcpy(a.target_mac, a.sender_mac, 10);
	__builtin_memcpy(a.sender_mac, virtual_mac, 6);
	__builtin_memcpy(a.sender_ip, ip, 4);
	a.operation = bpf_htons(2);
	bpf_skb_store_bytes(skb, 14, &a, sizeof a, BPF_F_RECOMPUTE_CSUM);
	send_answer(skb, virtual_mac);
}

/* A host that only tests whether the address is free (RFC 5227) has no address yet. */
static __always_inline int learn_arp(struct __sk_buff *skb, struct arp *a)
{
	if (!*(__u32 *)a->sender_ip)
		return TC_ACT_SHOT;
	a->operation = bpf_htons(2);
	bpf_skb_store_bytes(skb, 14, a, sizeof *a, BPF_F_RECOMPUTE_CSUM);
	bpf_skb_change_type(skb, PACKET_BROADCAST);	/* no answer to us: it does not prove that our packets reach the asker */
	return TC_ACT_OK;
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
	if (!node)
		return TC_ACT_OK;
	if (*(__u32 *)a.sender_ip == *(__u32 *)a.target_ip) {
		count(NEIGHBOUR_HELD);
		return TC_ACT_SHOT;
	}
	if (may_send(info->bucket))
		answer_arp(skb, a, info->mac);
	else
		count(NEIGHBOUR_HELD);
	return learn_arp(skb, &a);
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
enum { SOURCE_MAC = 1, TARGET_MAC = 2 };	/* options */
#define FLAG_ROUTER 0x80000000
#define FLAG_SOLICITED 0x40000000
#define FLAG_OVERRIDE 0x20000000

/* Content of a neighbour advertisement. */
struct advertised {
	const __be32 *from, *to;	/* the advertised address, and the receiver */
	const __u8 *mac;
	__u32 flags;
};

/* Puts an advertisement in the place of the solicitation. */
static __always_inline bool write_advertisement(struct __sk_buff *skb, const struct advertised *ad)
{
	struct ipv6hdr ip = { .version = 6, .nexthdr = IPPROTO_ICMPV6, .hop_limit = 255,
			      .payload_len = bpf_htons(sizeof(struct neighbour)) };
	struct neighbour n = { .type = ADVERTISEMENT, .flags = bpf_htonl(ad->flags), .option = TARGET_MAC, .option_len = 1 };
	if (skb->len != ADVERTISEMENT_FRAME && bpf_skb_change_tail(skb, ADVERTISEMENT_FRAME, 0))
		return false;
	__builtin_memcpy(ip.saddr, ad->from, 16);
	__builtin_memcpy(ip.daddr, ad->to, 16);
	__builtin_memcpy(n.target, ad->from, 16);
	__builtin_memcpy(n.mac, ad->mac, 6);
	__u64 sum = bpf_csum_diff(0, 0, ip.saddr, 32, bpf_htonl(sizeof n + IPPROTO_ICMPV6));
	n.check = fold(bpf_csum_diff(0, 0, (__be32 *)&n, sizeof n, sum));
	return !bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, BPF_F_RECOMPUTE_CSUM)
		&& !bpf_skb_store_bytes(skb, 54, &n, sizeof n, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline void answer_solicitation(struct __sk_buff *skb, const struct packet *p,
						const struct neighbour *n,
						const __u8 *virtual_mac)
{
	struct advertised ours = { n->target, p->key.remote_addr, virtual_mac, FLAG_SOLICITED | FLAG_OVERRIDE };
	if (write_advertisement(skb, &ours))
		send_answer(skb, virtual_mac);
}

/* Unsolicited, to all nodes. The router flag stays out: our kernel would drop its routes through a router that clears
 * the flag (RFC 4861, section 7.2.5), and uses no host as a router for this. */
static __always_inline int learn_solicitation(struct __sk_buff *skb, const struct packet *p, const struct neighbour *n)
{
	const __be32 all_nodes[4] = { bpf_htonl(0xff020000), 0, 0, bpf_htonl(1) };
	struct advertised theirs = { p->key.remote_addr, all_nodes, n->mac, FLAG_ROUTER | FLAG_OVERRIDE };
	if (n->option != SOURCE_MAC || n->option_len != 1 || !write_advertisement(skb, &theirs))
		return TC_ACT_SHOT;
	bpf_skb_change_type(skb, PACKET_BROADCAST);
	return TC_ACT_OK;
}

/* Whether the solicitation comes from this link and is intact (RFC 4861, section 7.1.1). Reads its option; with more
 * than the one that hosts send, the checksum is not verified. */
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
	    || !is_sound(skb, &n)) {
		count(NEIGHBOUR_HELD);
		return TC_ACT_SHOT;
	}
	if (may_send(info->bucket))
		answer_solicitation(skb, p, &n, info->mac);
	else
		count(NEIGHBOUR_HELD);
	return learn_solicitation(skb, p, &n);
}

static __always_inline int egress_arp(struct __sk_buff *skb)
{
	struct arp a;
	if (!node || bpf_skb_load_bytes(skb, 14, &a, sizeof a) || a.protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	struct address_info *info = address_v4(a.sender_ip);
	if (!info || (same_mac(a.sender_mac, info->mac) && may_send(info->bucket)))
		return TC_ACT_OK;
	count(NEIGHBOUR_HELD);
	return TC_ACT_STOLEN;
}

/* ICMPv6 on its way out: false when it advertises an address of ours without the right to. */
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
	return may_send(info->bucket);
}

/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Whose packet is it: buckets, leases, and what happens to packets of other nodes' buckets. */
#pragma once
#include "common.h"

#define ROTATE(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIP_ROUND do { \
	v0 += v1; v1 = ROTATE(v1, 13); v1 ^= v0; v0 = ROTATE(v0, 32); \
	v2 += v3; v3 = ROTATE(v3, 16); v3 ^= v2; \
	v0 += v3; v3 = ROTATE(v3, 21); v3 ^= v0; \
	v2 += v1; v1 = ROTATE(v1, 17); v1 ^= v2; v2 = ROTATE(v2, 32); \
} while (0)
#define SIP_WORD(m) do { v3 ^= (m); SIP_ROUND; v0 ^= (m); } while (0)

static __always_inline __u64 pair(__u32 low, __u32 high) { return (__u64)high << 32 | low; }

/* SipHash-1-3 of remote address, local address, remote port, local port as they are on the wire. */
static __always_inline __u32 hash_bucket(const struct flow_key *k)
{
	__u64 v0 = 0x736f6d6570736575ULL ^ bucket_key[0], v1 = 0x646f72616e646f6dULL ^ bucket_key[1];
	__u64 v2 = 0x6c7967656e657261ULL ^ bucket_key[0], v3 = 0x7465646279746573ULL ^ bucket_key[1];
	SIP_WORD(pair(k->remote_addr[0], k->remote_addr[1]));
	SIP_WORD(pair(k->remote_addr[2], k->remote_addr[3]));
	SIP_WORD(pair(k->local_addr[0], k->local_addr[1]));
	SIP_WORD(pair(k->local_addr[2], k->local_addr[3]));
	/* 36 bytes: the last word holds the ports and the length */
	SIP_WORD(pair((__u32)k->local_port << 16 | k->remote_port, 36u << 24));
	v2 ^= 0xff;
	SIP_ROUND; SIP_ROUND; SIP_ROUND;
	return (__u32)(v0 ^ v1 ^ v2 ^ v3) & (BUCKETS - 1);
}

enum role {
	ROLE_NONE,		/* not an address of ours */
	ROLE_ADDRESS,		/* our address, a port that is not gated */
	ROLE_LISTENER,
	ROLE_LEG,		/* the port of a server leg */
};

static __always_inline enum role role_of(const struct flow_key *k, __u32 *bucket)
{
	struct address_info *a = bpf_map_lookup_elem(&addresses, k->local_addr);
	if (!a)
		return ROLE_NONE;
	__u32 port = bpf_ntohs(k->local_port), offset = port - port_first;
	if (a->flags & ADDRESS_LEGS && port_block && port >= port_first && offset / port_block < BUCKETS) {
		*bucket = offset / port_block;
		return ROLE_LEG;
	}
	*bucket = hash_bucket(k);
	struct listener l = { .port = k->local_port };
	__builtin_memcpy(l.ip, k->local_addr, 16);
	return bpf_map_lookup_elem(&listeners, &l) ? ROLE_LISTENER : ROLE_ADDRESS;
}

static __always_inline __u64 owner_word(__u32 bucket)
{
	__u64 *word = bpf_map_lookup_elem(&owners, &bucket);
	return word ? READ(*word) : 0;
}

static __always_inline bool lease_over(__u32 of, __u64 now)
{
	__u64 *until = bpf_map_lookup_elem(&leases, &of);
	return !until || now >= READ(*until);
}

/* May this node emit for the bucket: it owns it, its own lease holds, and every listed backup's grant holds. */
static __always_inline bool may_send(__u32 bucket)
{
	if (!node)
		return true;
	__u64 word = owner_word(bucket), now = now_ns();
	if ((word & 0xff) != node) {
		count(FOREIGN);
		return false;
	}
	bool over = lease_over(0, now);
	word >>= 16;
	for (int i = 0; i < 6; i++) {
		if (!(word & 0xff))
			break;
		over = over || lease_over(word & 0xff, now);
		word >>= 8;
	}
	if (over)
		count(FENCED);
	return !over;
}

static __always_inline bool lists_us(__u64 word)
{
	for (int i = 2; i < 8; i++)
		if (((word >> (8 * i)) & 0xff) == node)
			return true;
	return false;
}

/* The most that the flow's peer can have. The output of the node before is unknown for a restored flow, but the peer's
 * window bounded it, and a window's right edge never moves left: nothing was sent beyond the edge that the peer offers
 * now, whatever segments were lost. */
static __always_inline __u32 peer_max(struct slot *s)
{
	__u32 next = READ(s->snd_nxt);
	if (!(READ(s->flags) & FLAG_RESTORED))
		return next;
	__u32 most = READ(s->ahead_max);
	if (READ(s->received_ns) && before(READ(s->room), most))
		most = READ(s->room);
	return before(most, next) ? next : most;
}

/* Whether the flow's peer could have sent this. A restored flow has its slot before its peer is probed: the node before
 * sent the peer no ACK beyond the replicated input, and at most a window less, as its last ACKs may be lost. A number
 * far off would stay the highest. */
static __always_inline bool is_credible(const struct packet *p, struct slot *s)
{
	__u32 window = 65535u << (s->wscale & 15), seq = bpf_ntohl(p->tcp.seq), ack = bpf_ntohl(p->tcp.ack_seq);
	return seq - (s->k_ack - window - WITHHELD_BYTES_MAX) <= 2 * window + WITHHELD_BYTES_MAX
		&& !after(ack, peer_max(s)) && !before(ack, s->snd_una - PEER_WINDOW_MAX);
}

/* Records the peer's segment: it shows a new owner how much the peer has. */
static __always_inline void record_peer(struct __sk_buff *skb, const struct packet *p)
{
	if (!p->tcp.ack || p->tcp.syn || p->tcp.rst)
		return;
	struct peer_input n = { .seq = bpf_ntohl(p->tcp.seq), .ack = bpf_ntohl(p->tcp.ack_seq),
			   .window = bpf_ntohs(p->tcp.window), .count = 1 };
	struct peer_input *old = bpf_map_lookup_elem(&peer_input, &p->key);
	if (old) {
		n.count = old->count + 1;
		if (before(n.ack, old->ack))
			n.ack = old->ack;
	}
	__be32 ts[3];
	if (p->tcp.doff >= 8 && !bpf_skb_load_bytes(skb, p->l4 + 20, ts, 12) && ts[0] == bpf_htonl(0x0101080a)) {
		n.tsval = bpf_ntohl(ts[1]);
		n.tsecr = bpf_ntohl(ts[2]);
	}
	bpf_map_update_elem(&peer_input, &p->key, &n, BPF_ANY);
}

static __always_inline bool spend_hop(struct __sk_buff *skb)
{
	__u8 left;
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 at = v4 ? 14 + 8 : 14 + 7;
	if (bpf_skb_load_bytes(skb, at, &left, 1) || left <= 1)
		return false;
	left--;
	if (v4) {			/* TTL is the upper half of its 16-bit word */
		__be16 old, new;
		bpf_skb_load_bytes(skb, at, &old, 2);
		new = old;
		*(__u8 *)&new = left;
		bpf_l3_csum_replace(skb, 14 + 10, old, new, 2);
	}
	return !bpf_skb_store_bytes(skb, at, &left, 1, 0);
}

static __always_inline bool same_mac(const __u8 *a, const __u8 *b)
{
	for (int i = 0; i < 6; i++)
		if (a[i] != b[i])
			return false;
	return true;
}

/* Whether the frame was sent to the virtual MAC, by a peer or its router. A node passes packets on to a card's
 * address. */
static __always_inline bool came_straight(struct __sk_buff *skb, const struct packet *p)
{
	__u8 to[6];
	struct address_info *info = bpf_map_lookup_elem(&addresses, p->key.local_addr);
	return info && !bpf_skb_load_bytes(skb, 0, to, 6) && same_mac(to, info->mac);
}

/* Passes the packet on to the owner, on the segment that it came from. */
static __always_inline int pass_on(struct __sk_buff *skb, const struct packet *p, __u32 owner)
{
	struct peer to = { skb->ifindex, owner }, from = { skb->ifindex, 0 };
	struct mac *theirs = bpf_map_lookup_elem(&peers, &to), *ours = bpf_map_lookup_elem(&peers, &from);
	if (!theirs || !ours) {
		count(NOT_OURS);
		return TC_ACT_SHOT;
	}
	/* It crosses no router, so that one hop is enough for the first time; it is never passed in circles. */
	if (!spend_hop(skb) && !came_straight(skb, p)) {
		count(TTL_SPENT);
		return TC_ACT_SHOT;
	}
	__u8 macs[12];
	__builtin_memcpy(macs, theirs->mac, 6);
	__builtin_memcpy(macs + 6, ours->mac, 6);
	bpf_skb_store_bytes(skb, 0, macs, 12, 0);
	count(STEERED);
	return bpf_redirect(skb->ifindex, 0);
}

/* Whether our kernel would answer a client that no other node could continue. */
static __always_inline bool begins(const struct packet *p)
{
	if (!p->tcp.syn || p->tcp.ack)
		return false;
	struct listener l = { .port = p->key.local_port };
	__builtin_memcpy(l.ip, p->key.local_addr, 16);
	__u32 *flags = bpf_map_lookup_elem(&listeners, &l);
	return flags && !(*flags & LISTENER_STATELESS);
}

/* The peer may have started again: the first segment with an acknowledgement shows for which SYN that was given. */
static __always_inline void keep_strange(const struct packet *p, struct slot *s)
{
	__u32 ack = bpf_ntohl(p->tcp.ack_seq), seq = bpf_ntohl(p->tcp.seq);
		/* The first one may arrive last: lost segments are resent behind others (RFC 8985, 7). */
	if (READ(s->strange_ack) == ack && !before(seq, READ(s->strange_seq)))
		return;
	WRITE(s->strange_seq, seq);
	WRITE(s->strange_ack, ack);
}

/* Ingress verdict for a packet of the bucket; negative: it is ours, process it. `s`: the flow's slot, or 0. */
static __always_inline int steer(struct __sk_buff *skb, const struct packet *p, __u32 bucket, bool stray,
				 struct slot *s)
{
	if (!node)
		return -1;
	__u64 word = owner_word(bucket);
	if ((word & 0xff) == node) {
		if (!(word & OWNER_HOLD) && !(word & OWNER_CLOSED && begins(p)))
			return -1;
		if (!s || is_credible(p, s))
			record_peer(skb, p);
		else if (p->tcp.ack && !p->tcp.syn && !p->tcp.rst)
			keep_strange(p, s);
		count(HELD);
		return TC_ACT_SHOT;
	}
	if (flood) {
		if (lists_us(word)) {
			record_peer(skb, p);
			count(SHADOWED);
		} else {
			count(NOT_OURS);
		}
		return TC_ACT_SHOT;
	}
	if (stray || !(word & 0xff)) {	/* a switch that forgot the virtual MAC floods: one node passes it on, not all */
		count(NOT_OURS);
		return TC_ACT_SHOT;
	}
	return pass_on(skb, p, word & 0xff);
}

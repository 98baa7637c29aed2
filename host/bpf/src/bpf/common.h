/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Layouts, maps and the packet reader. Rust sees the layouts through the skeleton's BTF; none is repeated by hand.
 * Sequence numbers, windows and ids are in host order unless the type is __be. */
#pragma once
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

enum {
	NODES = 64,		/* node ids 1 to 63; 0 means no node, or this node in `leases` and `peers` */
	BUCKETS = 1024,
	LANES = 64,		/* workers with a batch and a ring of their own */
	BATCH = 64,		/* ACKs per system call */
	WITHHELD_BYTES_MAX = 65536,	/* replicated bytes that may stay unacknowledged, so that a new owner has an ACK to send */
	PEER_WINDOW_MAX = 65535 << 14,
	EARLY_MAX = 4096,	/* bytes of a segment that is kept for a socket to come; a power of two */
};

/* 40 bytes; IPv4 as ::ffff:a.b.c.d */
struct flow_key {
	__be32 local_addr[4], remote_addr[4];
	__be16 local_port, remote_port;
	__u32 zone;
};

enum slot_flag {
	FLAG_FIN = 1,		/* FIN may leave */
	FLAG_RST = 2,		/* RST may leave */
	FLAG_RECOVERED = 4,		/* a program holds the slot: never reuse it under its feet */
	FLAG_RESTORED = 8,	/* the peer may acknowledge more than our kernel remembers to have sent */
	FLAG_OPEN = 16,		/* nothing is withheld any more */
	FLAG_LEARN = 32,	/* the path of packets is unknown until our kernel sends one */
	FLAG_ASLEEP = 64,	/* its socket is being made: nothing may reach it yet */
	FLAG_GONE = 128,	/* one of its ends has refused the other: no acknowledgement will come */
	PORT_SHIFT = 24,	/* upper byte: the worker port that gets events of acknowledgements */
};

/* Four cache lines, one per writer: a line's writer owns it, all others only read. */
struct slot {
	/* 0: user space. `armed` belongs to a program: set by user space, cleared once by ingress */
	__u32 committed;	/* the highest ACK that may leave */
	__u32 flags;
	__u32 wake_at;		/* event when snd_una reaches this and `armed` is set */
	__u32 armed;
	__u32 peer_wscale;	/* of a restored flow: the scale of its peer's window */
	__u32 user_pad[11];
	/* 1: egress */
	__u32 k_ack, k_edge;	/* what the kernel acknowledged, and the right window edge that it offers */
	__u32 snd_nxt;
	__u32 sent_ack, sent_edge, sent_win;	/* what really left; sent_win unscaled, as on the wire */
	__be32 tsval;
	__u32 ahead_max;	/* of a restored flow: the most that its peer may have, whatever it acknowledges; at least snd_nxt */
	__u64 answered_ns;	/* last repeated ACK that was let through */
	__u64 born_ns;
	__u32 greeted;		/* counted in `greetings`, until a program takes the slot */
	__u32 egress_pad2[3];
	/* 2: ingress */
	__u32 snd_una;		/* what the peer acknowledged of what our kernel sent */
	__u32 peer_ack;		/* the highest ACK received, may be ahead of snd_una after a failover */
	__be32 tsecr;		/* the peer's newest timestamp */
	__u32 syn_sent;		/* active open that waits for its SYN-ACK */
	__u32 established;	/* the peer has answered our SYN or SYN-ACK */
	__u32 strange_ack;	/* on hold: what was acknowledged last that this connection's peer would not; 0: nothing */
	__u32 room;		/* of a restored flow, once its peer's first segment came: the right edge of its window */
	__u32 room_known;	/* that is all that the peer had ever offered to the node before us */
	__u64 received_ns;		/* of a restored flow: when its peer's first segment came; 0: not yet */
	__u32 strange_seq;	/* the least number of a segment that acknowledged this */
	__u32 ingress_pad[5];
	/* 3: written at registration; egress writes where packets go next when it learns that, or it changes */
	struct flow_key key;
	__u8 eth[14];		/* link header of our packets */
	__u8 wscale, has_ts;	/* our receive window's scale; timestamps in use */
	__u32 ifindex;		/* where our packets leave */
	__u16 bucket, generation;
};
_Static_assert(sizeof(struct slot) == 256, "a slot is four cache lines");
_Static_assert(__builtin_offsetof(struct slot, eth) % 4 == 0, "link headers are compared by words");
_Static_assert(sizeof(struct flow_key) == 40, "the key has no hidden padding");

/* One of our addresses that can move between nodes. */
enum { ADDRESS_LEGS = 1 };	/* server legs start here, their ports identify the bucket */
struct address { __be32 ip[4]; };
struct address_info {
	__u32 flags;
	__u16 bucket;		/* the owner of this bucket answers ARP and neighbour discovery */
	__u8 mac[6];		/* the virtual MAC */
	__u32 pad;
};
/* What a listener's entry holds. */
enum { LISTENER_STATELESS = 1 };	/* SYNs are answered without keeping state */
struct listener {
	__be32 ip[4];
	__be16 port;
	__u16 pad;
};

/* What the peer of a flow sent while the flow was on hold or belonged to another node. */
struct peer_input {
	__u32 seq, ack, window, count;	/* ack: the highest */
	__u32 tsval, tsecr;
};

struct peer { __u32 ifindex, node; };
struct mac { __u8 mac[6]; __u16 pad; };

struct batch { __u32 count, slot[BATCH]; };

/* A segment whose socket is yet to be made; `segment` is as long as it is, from the TCP header on. */
struct early_segment { struct flow_key key; __u8 segment[EARLY_MAX]; };

struct settings { __u32 reset_unknown, pad; };

/* Connections of a bucket whose SYN our kernel has answered and that no program has accepted yet: unknown elsewhere. */
struct greeting { __u64 count, newest_ns; };

/* An owner word: bits 0-7 owner, 8 HOLD, 9 CLOSED (our kernel answers no SYN), 16-63 up to six backups, one byte
 * each. */
#define OWNER_HOLD 0x100ULL
#define OWNER_CLOSED 0x200ULL

enum counter {
	CLAMPED, ACK_DROPPED, ACK_EMITTED, SACK_HIDDEN, ACK_LOWERED, SEQ_RAISED, FIN_HELD, RST_HELD,
	FENCED, FOREIGN, UNREGISTERED, NO_SLOT, EVENT_LOST,
	HELD, STEERED, SHADOWED, NOT_OURS, TTL_SPENT, UNSTEERABLE, NEIGHBOUR_ANSWERED, NEIGHBOUR_HELD,
	COOKIE_SENT, COOKIE_ACCEPTED, COOKIE_WRONG,
	EARLY_SEGMENT,
	SYN_DATA,
	COUNTERS,
};

/* Constants of one load; the verifier prunes what they rule out. */
const volatile __u32 node = 0;			/* 0: no cluster, everything is ours */
const volatile __u32 flood = 0;			/* flood mode: drop what is not ours instead of passing it on */
const volatile __u32 port_first = 0, port_block = 0;	/* ports of server legs: block per bucket */
const volatile __u64 bucket_key[2] = {};
const volatile __u32 template_mark = 0x50110001;
const volatile __u32 cookie_mark = 0x50110002;
const volatile __u64 repeat_ns = 50000000;
const volatile __u64 room_ns = 5000000000;
const volatile __u32 test_clock = 0;
__u64 test_now_ns = 0;				/* the clock when test_clock is set */

#define MAP(KIND, NAME, ENTRIES, KEY, VALUE, FLAGS) \
	struct { __uint(type, KIND); __uint(max_entries, ENTRIES); __uint(map_flags, FLAGS); \
		 __type(key, KEY); __type(value, VALUE); } NAME SEC(".maps")

/* Entries of the first four are set by the loader. */
MAP(BPF_MAP_TYPE_ARRAY, slots, 1024, __u32, struct slot, BPF_F_MMAPABLE);
MAP(BPF_MAP_TYPE_HASH, flows, 1024, struct flow_key, __u32, 0);
struct { __uint(type, BPF_MAP_TYPE_QUEUE); __uint(max_entries, 1024); __uint(key_size, 0); __uint(value_size, 4); }
	free_slots SEC(".maps");
MAP(BPF_MAP_TYPE_LRU_HASH, peer_input, 1024, struct flow_key, struct peer_input, 0);
MAP(BPF_MAP_TYPE_HASH, addresses, 1024, struct address, struct address_info, 0);
MAP(BPF_MAP_TYPE_HASH, listeners, 4096, struct listener, __u32, 0);
MAP(BPF_MAP_TYPE_ARRAY, owners, BUCKETS, __u32, __u64, BPF_F_MMAPABLE);
MAP(BPF_MAP_TYPE_ARRAY, leases, NODES, __u32, __u64, BPF_F_MMAPABLE);	/* by now_ns(); [0] is our own */
MAP(BPF_MAP_TYPE_ARRAY, pending, BUCKETS, __u32, __u64, BPF_F_MMAPABLE);	/* lane + 1 that makes sockets of the bucket */
MAP(BPF_MAP_TYPE_ARRAY, greetings, BUCKETS, __u32, struct greeting, BPF_F_MMAPABLE);
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, early_buffer, 1, __u32, struct early_segment, 0);
MAP(BPF_MAP_TYPE_HASH, peers, 1024, struct peer, struct mac, 0);
MAP(BPF_MAP_TYPE_ARRAY, batches, LANES, __u32, struct batch, BPF_F_MMAPABLE);
MAP(BPF_MAP_TYPE_ARRAY, settings, 1, __u32, struct settings, BPF_F_MMAPABLE);
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, counters, COUNTERS, __u32, __u64, 0);
struct ring { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 20); };
struct { __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS); __uint(max_entries, LANES); __type(key, __u32);
	 __array(values, struct ring); } events SEC(".maps");

#define READ(x) (*(volatile typeof(x) *)&(x))
#define WRITE(x, v) (*(volatile typeof(x) *)&(x) = (v))

static __always_inline bool before(__u32 a, __u32 b) { return (__s32)(a - b) < 0; }
static __always_inline bool after(__u32 a, __u32 b) { return before(b, a); }
/* The boot-time clock: the monotonic clock stops while the machine is suspended, when other nodes get its buckets. */
static __always_inline __u64 now_ns(void) { return test_clock ? READ(test_now_ns) : bpf_ktime_get_boot_ns(); }

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &which);
	if (n)
		(*n)++;
}

static __always_inline struct slot *slot_of(const struct flow_key *key, __u32 *index)
{
	__u32 *i = bpf_map_lookup_elem(&flows, key);
	if (!i)
		return 0;
	*index = *i;
	return bpf_map_lookup_elem(&slots, i);
}

enum kind {
	KIND_OTHER,		/* nothing that concerns us */
	KIND_ARP,
	KIND_IP,		/* IP, but not TCP: only the addresses of the key are set */
	KIND_ODD,		/* fragments, options, extension headers, cut off: ports unknown, so no bucket */
	KIND_TCP,
};

struct packet {
	struct flow_key key;
	struct tcphdr tcp;
	__u32 l4;		/* offset of what follows the IP header */
	__u32 data_len;		/* TCP payload */
	__u8 protocol;
};

static __always_inline enum kind read_tcp(struct __sk_buff *skb, struct packet *p, __u32 total, bool egress)
{
	if (bpf_skb_load_bytes(skb, p->l4, &p->tcp, sizeof p->tcp) || p->tcp.doff < 5)
		return KIND_ODD;
	p->data_len = total - p->tcp.doff * 4;
	if (total < p->tcp.doff * 4)
		return KIND_ODD;
	p->key.local_port = egress ? p->tcp.source : p->tcp.dest;
	p->key.remote_port = egress ? p->tcp.dest : p->tcp.source;
	return KIND_TCP;
}

static __always_inline enum kind read_ipv4(struct __sk_buff *skb, struct packet *p, bool egress)
{
	struct iphdr ip;
	if (bpf_skb_load_bytes(skb, 14, &ip, sizeof ip))
		return KIND_OTHER;
	p->key.local_addr[2] = p->key.remote_addr[2] = bpf_htonl(0xffff);
	p->key.local_addr[3] = egress ? ip.saddr : ip.daddr;
	p->key.remote_addr[3] = egress ? ip.daddr : ip.saddr;
	p->protocol = ip.protocol;
	p->l4 = 34;
	if (ip.ihl != 5 || ip.frag_off & bpf_htons(0x3fff))
		return KIND_ODD;
	if (ip.protocol != IPPROTO_TCP)
		return KIND_IP;
	__u32 total = bpf_ntohs(ip.tot_len);
	if (!total)			/* larger than 64 KB: the field is unused */
		total = skb->len - 14;
	if (total > skb->len - 14)	/* cut off on its way */
		return KIND_ODD;
	return read_tcp(skb, p, total - 20, egress);
}

static __always_inline enum kind read_ipv6(struct __sk_buff *skb, struct packet *p, bool egress)
{
	struct ipv6hdr ip;
	if (bpf_skb_load_bytes(skb, 14, &ip, sizeof ip))
		return KIND_OTHER;
	__builtin_memcpy(p->key.local_addr, egress ? ip.saddr : ip.daddr, 16);
	__builtin_memcpy(p->key.remote_addr, egress ? ip.daddr : ip.saddr, 16);
	p->protocol = ip.nexthdr;
	p->l4 = 54;
	if (ip.nexthdr == 0 || ip.nexthdr == 43 || ip.nexthdr == 44 || ip.nexthdr == 60)
		return KIND_ODD;
	if (ip.nexthdr != IPPROTO_TCP)
		return KIND_IP;
	__u32 total = bpf_ntohs(ip.payload_len), there = skb->len - 54;
	if (total > there)
		return KIND_ODD;
	return read_tcp(skb, p, total ? total : there, egress);
}

static __always_inline enum kind read_packet(struct __sk_buff *skb, struct packet *p, bool egress)
{
	__builtin_memset(p, 0, sizeof *p);
	/* of another network on the same cable; the tag is in no byte of the frame any more. VLAN 0 is a priority
	 * only */
	if (skb->vlan_present && skb->vlan_tci & 0xfff)
		return KIND_OTHER;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		return read_ipv4(skb, p, egress);
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		return read_ipv6(skb, p, egress);
	return skb->protocol == bpf_htons(ETH_P_ARP) ? KIND_ARP : KIND_OTHER;
}

/* Replaces `len` bytes (a multiple of 4) of the TCP header at `offset`, from `old` to `new`, and updates the checksum.
 * Without BPF_F_PSEUDO_HDR the call does nothing to packets whose checksum the device will fill in, which is right. */
#define REPLACE_TCP(skb, p, offset, old, new, len) do { \
	__s64 diff_ = bpf_csum_diff((__be32 *)(old), len, (__be32 *)(new), len, 0); \
	bpf_l4_csum_replace(skb, (p)->l4 + 16, 0, diff_, 0); \
	bpf_skb_store_bytes(skb, (p)->l4 + (offset), new, len, 0); \
} while (0)

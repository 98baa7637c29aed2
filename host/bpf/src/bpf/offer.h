/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What a SYN offers, and which of its options a later segment has. */
#pragma once
#include "common.h"

struct offer {
	__be32 tsval, tsecr;
	__u32 mss;
	bool wscale_present, has_ts, sack;
	__u8 wscale;
	__u8 tsecr_at;		/* where the echoed timestamp stands in the TCP header */
};

struct option_walk {
	struct __sk_buff *skb;
	__u32 l4, at, end;
	struct offer offer;
};

/* One option. A loop of the kernel's: unrolled, the verifier would follow every combination. */
static long read_option(__u32 i, struct option_walk *w)
{
	struct { __u8 kind, len; __u8 value[8]; } o = {};
	if (w->at >= w->end || bpf_skb_load_bytes(w->skb, w->at, &o.kind, 1) || !o.kind)
		return 1;
	if (o.kind == 1) {
		w->at++;
		return 0;
	}
	if (bpf_skb_load_bytes(w->skb, w->at, &o, 2) || o.len < 2)
		return 1;
	if (o.kind == 2 && o.len == 4 && !bpf_skb_load_bytes(w->skb, w->at, &o, 4)) {
		w->offer.mss = o.value[0] << 8 | o.value[1];
	} else if (o.kind == 3 && o.len == 3 && !bpf_skb_load_bytes(w->skb, w->at, &o, 3)) {
		w->offer.wscale_present = true;
		w->offer.wscale = o.value[0] > 14 ? 14 : o.value[0];
	} else if (o.kind == 4 && o.len == 2) {
		w->offer.sack = true;
	} else if (o.kind == 8 && o.len == 10 && !bpf_skb_load_bytes(w->skb, w->at, &o, 10)) {
		w->offer.has_ts = true;
		__builtin_memcpy(&w->offer.tsval, o.value, 4);
		__builtin_memcpy(&w->offer.tsecr, o.value + 4, 4);
		w->offer.tsecr_at = w->at + 6 - w->l4;
	}
	w->at += o.len;
	return 0;
}

/* Segment size, window scale, timestamps and SACK of a SYN; timestamps of any segment. */
static __always_inline void read_offer(struct __sk_buff *skb, const struct packet *p, struct offer *offer)
{
	struct option_walk w = { .skb = skb, .l4 = p->l4, .at = p->l4 + 20, .end = p->l4 + p->tcp.doff * 4 };
	bpf_loop(40, read_option, &w, 0);
	*offer = w.offer;
}

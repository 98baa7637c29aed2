/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Sockets of this machine. */
#pragma once
#include "common.h"

#define STATE_LISTEN 10

/* The socket that would get the packet, or whose peer it goes to; to be released. */
static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct packet *p, bool v6)
{
	struct bpf_sock_tuple t = {};
	if (v6) {
		__builtin_memcpy(t.ipv6.saddr, p->key.remote_addr, 16);
		__builtin_memcpy(t.ipv6.daddr, p->key.local_addr, 16);
		t.ipv6.sport = p->key.remote_port;
		t.ipv6.dport = p->key.local_port;
		return bpf_skc_lookup_tcp(skb, &t, sizeof t.ipv6, BPF_F_CURRENT_NETNS, 0);
	}
	t.ipv4.saddr = p->key.remote_addr[3];
	t.ipv4.daddr = p->key.local_addr[3];
	t.ipv4.sport = p->key.remote_port;
	t.ipv4.dport = p->key.local_port;
	return bpf_skc_lookup_tcp(skb, &t, sizeof t.ipv4, BPF_F_CURRENT_NETNS, 0);
}

/* That socket's state, 0 when there is none. */
static __always_inline int socket_state(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk = find_socket(skb, p, skb->protocol == bpf_htons(ETH_P_IPV6));
	int state = sk ? sk->state : 0;
	if (sk)
		bpf_sk_release(sk);
	return state;
}

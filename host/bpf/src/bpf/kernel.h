/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The few kernel types that the programs use, instead of a 2.8 MB vmlinux.h: wire formats, contexts of the BPF ABI
 * (append-only, so a prefix is enough), and constants. Nothing here depends on the running kernel. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false = 0, true = 1 };

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
};
enum { BPF_ANY = 0, BPF_NOEXIST = 1, BPF_EXIST = 2 };
enum { BPF_F_MMAPABLE = 1024 };
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1 };
enum { BPF_F_CURRENT_NETNS = -1, BPF_F_RECOMPUTE_CSUM = 1, BPF_F_PSEUDO_HDR = 16 };
enum { TC_ACT_UNSPEC = -1, TC_ACT_OK = 0, TC_ACT_SHOT = 2, TC_ACT_STOLEN = 4 };
enum { PACKET_HOST = 0, PACKET_BROADCAST = 1 };
enum { ETH_P_IP = 0x0800, ETH_P_ARP = 0x0806, ETH_P_IPV6 = 0x86dd };
enum { IPPROTO_ICMP = 1, IPPROTO_TCP = 6, IPPROTO_ICMPV6 = 58 };

struct ethhdr {
	__u8 h_dest[6];
	__u8 h_source[6];
	__be16 h_proto;
};

struct arp {			/* Ethernet and IPv4 only */
	__be16 hardware, protocol;
	__u8 hardware_len, protocol_len;
	__be16 operation;
	__u8 sender_mac[6], sender_ip[4];
	__u8 target_mac[6], target_ip[4];
};

struct iphdr {
	__u8 ihl: 4, version: 4;
	__u8 tos;
	__be16 tot_len, id, frag_off;
	__u8 ttl, protocol;
	__u16 check;
	__be32 saddr, daddr;
};

struct ipv6hdr {
	__u8 priority: 4, version: 4;
	__u8 flow_lbl[3];
	__be16 payload_len;
	__u8 nexthdr, hop_limit;
	__be32 saddr[4], daddr[4];
};

struct neighbour {		/* ICMPv6 neighbour solicitation or advertisement with its one option (RFC 4861, 4.3, 4.4) */
	__u8 type, code;
	__u16 check;
	__be32 flags;
	__be32 target[4];
	__u8 option, option_len, mac[6];
};

struct tcphdr {
	__be16 source, dest;
	__be32 seq, ack_seq;
	__u16 ae: 1, res1: 3, doff: 4, fin: 1, syn: 1, rst: 1, psh: 1, ack: 1, urg: 1, ece: 1, cwr: 1;
	__be16 window;
	__u16 check;
	__be16 urg_ptr;
};

struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol, vlan_present, vlan_tci, vlan_proto, priority;
	__u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid, data, data_end;
};

struct bpf_sock {
	__u32 bound_dev_if, family, type, protocol, mark, priority, src_ip4, src_ip6[4], src_port;
	__be16 dst_port;
	__u32 dst_ip4, dst_ip6[4], state;
};

struct bpf_sock_tuple {
	union {
		struct { __be32 saddr, daddr; __be16 sport, dport; } ipv4;
		struct { __be32 saddr[4], daddr[4]; __be16 sport, dport; } ipv6;
	};
};

struct bpf_tcp_req_attrs {
	__u32 rcv_tsval, rcv_tsecr;
	__u16 mss;
	__u8 rcv_wscale, snd_wscale, ecn_ok, wscale_ok, sack_ok, tstamp_ok, usec_ts_ok, reserved[3];
};

/* The kernel compares kinds, so these must be structs with something in them. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock { __u32 sk_mark; };
struct tcp_sock { __u32 tsoffset; };
#pragma clang attribute pop

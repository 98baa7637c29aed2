/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stateless accept: a SYN is answered with a cookie that any node of the cluster can check. A connection survives
 * its node from the first packet on, and a flood of SYNs costs no memory. Only clients of very small segments are
 * left to our kernel, few at a time. A tc filter behind the gate, in an object of its own: bpf_sk_assign_tcp_reqsk()
 * needs Linux 6.9.
 *
 * The sequence number of our SYN-ACK: 22 bits of a keyed hash over the addresses, the epoch and the options, plus
 * the peer's sequence number; 2 bits of the epoch (68.7 s, from the TAI clock); 3 bits of segment size, 4 of window
 * scale (15: none), 1 of SACK. For a later segment, whose number is at most a window further, the sum is never
 * right. With a hash of both numbers, one of some thousand connections whose first segment was lost would start in
 * the middle of its stream. Timestamps need no bits: the client returns them with the cookie. An epoch before or
 * after ours is accepted: the cookie of another node is valid while the clock difference plus its age are below 68.7
 * s, and never beyond twice that. A refused segment is left to the kernel, which answers with RST. */
#include "offer.h"
#include "owner.h"
#include "socket.h"

char LICENSE[] SEC("license") = "GPL";

extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
				   int attrs__sz) __ksym;

const volatile __u64 cookie_key[2] = {};
const volatile __u32 test_epoch = 0;	/* instead of the clock's; 0: none */
enum { NETWORKS = 16 };
struct network { __be32 ip[4], mask[4]; };
/* Of the interface, as user space has seen it last. */
struct card {
	__u32 segment_bytes[2];		/* what we offer, IPv4 and IPv6 */
	__u32 networks, pad;		/* how many of these there are: an address in one of them is on the link */
	struct network network[NETWORKS];
};
struct card card = { .segment_bytes = { 1460, 1440 } };
/* What our kernel may agree to (sysctls): it makes no socket that does what is switched off. */
const volatile __u32 use_timestamps = 1, use_sack = 1, use_scaling = 1;
/* Milliseconds from the monotonic clock to the timestamps of this node's SYN-ACKs; another number on each node. */
const volatile __u32 timestamp_offset = 0;

#define NO_WSCALE 15
#define FIRST_WINDOW 65535	/* bytes that a peer may send after the SYN-ACK alone */
#define OUR_WSCALE 7
#define ROUND_TRIP_MS_MAX 3000	/* the RTO without a round trip; an older SYN-ACK shows a pause of the client */
#define SENSIBLE_MSS 88		/* our kernel accepts no less from programs (TCP_MAXSEG): no real client sends less */

/* A word takes two rounds here, against one in the bucket hash. */
#define COOKIE_WORD(m) do { __u64 m_ = (m); v3 ^= m_; SIP_ROUND; SIP_ROUND; v0 ^= m_; } while (0)

/* SipHash-2-4 of the flow, the epoch and the option bits. */
static __noinline __u32 cookie_hash(const struct flow_key *k, __u32 epoch, __u32 options)
{
	if (!k)
		return 0;
	__u64 v0 = 0x736f6d6570736575ULL ^ cookie_key[0], v1 = 0x646f72616e646f6dULL ^ cookie_key[1];
	__u64 v2 = 0x6c7967656e657261ULL ^ cookie_key[0], v3 = 0x7465646279746573ULL ^ cookie_key[1];
	COOKIE_WORD((__u64)k->remote_addr[0] << 32 | k->remote_addr[1]);
	COOKIE_WORD((__u64)k->remote_addr[2] << 32 | k->remote_addr[3]);
	COOKIE_WORD((__u64)k->local_addr[0] << 32 | k->local_addr[1]);
	COOKIE_WORD((__u64)k->local_addr[2] << 32 | k->local_addr[3]);
	COOKIE_WORD((__u64)k->remote_port << 48 | (__u64)k->local_port << 32);
	COOKIE_WORD((__u64)epoch << 32 | options);
	COOKIE_WORD(48ULL << 56);
	v2 ^= 0xff;
	SIP_ROUND; SIP_ROUND; SIP_ROUND; SIP_ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

static __always_inline __u32 epoch_now(void) { return test_epoch ? test_epoch : bpf_ktime_get_tai_ns() >> 36; }

static __always_inline __u32 cookie_of(const struct flow_key *k, __u32 theirs, __u32 epoch, __u32 options)
{
	return (cookie_hash(k, epoch, options) + theirs) << 10 | (epoch & 3) << 8 | options;
}

enum judgement { STRANGE, LATER, FIRST };

/* FIRST: the cookie was given for a SYN of this number. LATER: for one of less, by up to a window. */
static __always_inline enum judgement judge_cookie(const struct flow_key *k, __u32 cookie, __u32 theirs)
{
	__u32 now = epoch_now();
	__s32 distance = ((cookie >> 8) - now + 1) & 3;	/* 0: the epoch before, 1: this one, 2: the next */
	if (distance == 3)
		return STRANGE;
	__u32 further = (cookie_of(k, theirs, now + distance - 1, cookie & 0xff) - cookie) >> 10;
	return !further ? FIRST : further <= FIRST_WINDOW ? LATER : STRANGE;
}

static __always_inline __u16 mss_of(__u32 index)
{
	switch (index & 7) {
	case 0: return 536;
	case 1: return 1220;
	case 2: return 1300;
	case 3: return 1380;
	case 4: return 1440;
	case 5: return 1460;
	case 6: return 4312;
	default: return 8960;
	}
}

static __always_inline __u32 mss_index(__u32 mss)
{
	return mss >= 8960 ? 7 : mss >= 4312 ? 6 : mss >= 1460 ? 5 : mss >= 1440 ? 4 : mss >= 1380 ? 3
		: mss >= 1300 ? 2 : mss >= 1220 ? 1 : 0;
}

/* Our kernel makes no socket for smaller segments from a cookie. */
static __always_inline __u32 least_mss(bool v6) { return v6 ? 1220 : 536; }

/* ---- SYN ---- */

struct syn_ack { struct tcphdr tcp; __be32 option[5]; };

/* The timestamp of a SYN-ACK of this node, in milliseconds of the clock of the kernel's own timestamps. */
static __always_inline __u32 timestamp_now(void)
{
	return (__u32)(bpf_ktime_get_ns() / 1000000) + timestamp_offset;
}

static __always_inline void write_options(struct syn_ack *new, const struct offer *offer, bool v6)
{
	new->option[0] = bpf_htonl(0x02040000 | (READ(card.segment_bytes[v6]) & 0xffff));
	new->option[1] = bpf_htonl((offer->sack ? 0x04020000 : 0x01010000) | (offer->has_ts ? 0x080a : 0x0101));
	new->option[2] = offer->has_ts ? bpf_htonl(timestamp_now()) : bpf_htonl(0x01010101);
	new->option[3] = offer->has_ts ? offer->tsval : bpf_htonl(0x01010101);
	new->option[4] = bpf_htonl(offer->wscale_present ? 0x01030300 | OUR_WSCALE : 0x01010101);
}

static __always_inline void turn_around(struct __sk_buff *skb, const struct packet *p, bool v6)
{
	if (v6) {
		struct ipv6hdr ip = { .version = 6, .nexthdr = IPPROTO_TCP, .hop_limit = 64,
				      .payload_len = bpf_htons(sizeof(struct syn_ack)) };
		__builtin_memcpy(ip.saddr, p->key.local_addr, 16);
		__builtin_memcpy(ip.daddr, p->key.remote_addr, 16);
		bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, 0);
		return;
	}
	struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP, .frag_off = bpf_htons(0x4000),
			    .tot_len = bpf_htons(20 + sizeof(struct syn_ack)),
			    .saddr = p->key.local_addr[3], .daddr = p->key.remote_addr[3] };
	__u64 sum = bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof ip, 0);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip.check = ~sum;
	bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, 0);
}

/* Our kernel answers the SYN, unless the bucket is about to move. */
static __always_inline int leave_to_kernel(__u32 bucket)
{
	return owner_word(bucket) & OWNER_CLOSED ? TC_ACT_SHOT : TC_ACT_OK;
}

/* Whether our kernel has answered a client of the bucket that no program has accepted yet. */
static __always_inline bool greets(__u32 bucket)
{
	struct greeting *g = bpf_map_lookup_elem(&greetings, &bucket);
	return !g || READ(g->count);
}

static __always_inline bool is_on_link(const struct flow_key *k)
{
	for (__u32 i = 0; i < NETWORKS && i < READ(card.networks); i++) {
		const struct network *n = &card.network[i];
		__u32 differs = 0;
		for (int j = 0; j < 4; j++)
			differs |= (k->remote_addr[j] ^ n->ip[j]) & n->mask[j];
		if (!differs)
			return true;
	}
	return false;
}

/* Sends the answer. On the link it goes to the card that the SYN came from: a flood from unused addresses would fill
 * our kernel's neighbour table with requests for them, and evict the entries that the cluster needs. Clients off the
 * link are behind few routers and are reached by the kernel's routes: the way back may be another one. A SYN that
 * another node passed on takes the routes too, because its frame hides the client's card. */
static __always_inline int send_syn_ack(struct __sk_buff *skb, const struct packet *p)
{
	__u8 macs[12];
	struct peer from = { skb->ifindex, 0 };
	struct mac *ours = bpf_map_lookup_elem(&peers, &from);
	bool is_back = ours && is_on_link(&p->key) && came_straight(skb, p) && !bpf_skb_load_bytes(skb, 6, macs, 6);
	if (!is_back || macs[0] & 1)		/* a group address is no card */
		return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
	__builtin_memcpy(macs + 6, ours->mac, 6);
	bpf_skb_store_bytes(skb, 0, macs, 12, 0);
	return bpf_redirect(skb->ifindex, 0);
}

/* The checksum is updated, not computed: whether it covers the packet yet or only the pseudo-header (a sender on this
 * machine left the rest to its card) cannot be seen here. */
static __always_inline int answer_syn(struct __sk_buff *skb, struct packet *p)
{
	struct offer offer;
	struct { __be32 word[15]; } old = {};
	struct syn_ack new = { .tcp = { .source = p->tcp.dest, .dest = p->tcp.source, .doff = 10, .syn = 1, .ack = 1,
					.window = bpf_htons(65535) } };
	bool v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u32 old_len = (p->tcp.doff * 4) & 63, theirs = bpf_ntohl(p->tcp.seq);
	if (old_len < 20 || old_len > 60 || bpf_skb_load_bytes(skb, p->l4, &old, old_len))
		return TC_ACT_OK;
	read_offer(skb, p, &offer);
	if (offer.mss >= SENSIBLE_MSS && offer.mss < least_mss(v6)) {
		/* By a cookie it would get segments that are larger than it takes. What our kernel answers takes a
		 * slot: of a bucket one at a time, or a flood of such SYNs would take all. */
		__u32 bucket = hash_bucket(&p->key);
		if (!greets(bucket))
			return leave_to_kernel(bucket);
	}
	offer.has_ts &= !!use_timestamps;
	offer.sack &= !!use_sack;
	offer.wscale_present &= !!use_scaling;
	__u32 options = mss_index(offer.mss) << 5 | (offer.wscale_present ? offer.wscale : NO_WSCALE) << 1 | offer.sack;
	new.tcp.seq = bpf_htonl(cookie_of(&p->key, theirs, epoch_now(), options));
	new.tcp.ack_seq = bpf_htonl(theirs + 1);
	write_options(&new, &offer, v6);
	old.word[4] &= bpf_htonl(0xffff);	/* without the checksum */
	__s64 diff = bpf_csum_diff(old.word, sizeof old, (__be32 *)&new, sizeof new, 0);
	new.tcp.check = p->tcp.check;
	if (bpf_skb_change_tail(skb, p->l4 + sizeof new, 0))
		return TC_ACT_SHOT;
	turn_around(skb, p, v6);
	bpf_skb_store_bytes(skb, p->l4, &new, sizeof new, 0);
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, diff, 0);
	bpf_l4_csum_replace(skb, p->l4 + 16, bpf_htons(old_len), bpf_htons(sizeof new), BPF_F_PSEUDO_HDR | 2);
	skb->mark = cookie_mark;
	count(COOKIE_SENT);
	return send_syn_ack(skb, p);
}

/* ---- the ACK that returns the cookie ---- */

enum registration { REFUSED, KNOWN, FRESH };

static __always_inline void unregister(struct slot *s, __u32 index)
{
	s->born_ns = 0;
	bpf_map_push_elem(&free_slots, &index, 0);
}

/* Our kernel makes no socket of the segment: no program will ever accept the slot. */
static __always_inline void withdraw(const struct packet *p)
{
	__u32 index;
	struct slot *s = slot_of(&p->key, &index);
	if (s && !(READ(s->flags) & FLAG_RECOVERED) && !bpf_map_delete_elem(&flows, &p->key))
		unregister(s, index);
}

static __always_inline enum registration register_accepted(struct __sk_buff *skb, struct packet *p,
							    const struct bpf_tcp_req_attrs *attrs, __u32 bucket)
{
	__u32 index;
	struct slot *s = slot_of(&p->key, &index);
	bool known = s, fresh = !s || READ(s->flags) & FLAG_RECOVERED;
	__u32 seq = bpf_ntohl(p->tcp.seq), ack = bpf_ntohl(p->tcp.ack_seq);
	/* Two segments of one handshake on two processors: the second leaves alone what a worker may have taken
	 * since. */
	if (!fresh && s->committed == seq && s->snd_una == ack && s->established)
		return KNOWN;
	if (fresh) {
		if (bpf_map_pop_elem(&free_slots, &index)) {
			count(NO_SLOT);
			return REFUSED;
		}
		s = bpf_map_lookup_elem(&slots, &index);
		if (!s)
			return REFUSED;
	}
	__u16 generation = s->generation + 1;
	__u32 greeted = fresh ? 0 : s->greeted;
	__builtin_memset(s, 0, sizeof *s);
	s->greeted = greeted;
	s->committed = s->k_ack = s->sent_ack = seq;
	s->k_edge = s->sent_edge = seq + 65535;
	s->snd_nxt = s->snd_una = s->peer_ack = ack;
	s->tsval = bpf_htonl(attrs->rcv_tsecr);
	s->tsecr = bpf_htonl(attrs->rcv_tsval);
	s->established = 1;
	s->born_ns = now_ns();
	s->key = p->key;
	s->wscale = attrs->wscale_ok ? OUR_WSCALE : 0;
	s->has_ts = attrs->tstamp_ok;
	s->ifindex = skb->ifindex;
	s->bucket = bucket;
	s->generation = generation;
	s->flags = FLAG_LEARN;		/* the frame may come from a node that passed it on */
	if (!fresh)
		return KNOWN;
	/* A connection with these ends that is being restored was entered since: it has precedence over this one. */
	if (!bpf_map_update_elem(&flows, &p->key, &index, known ? BPF_ANY : BPF_NOEXIST))
		return FRESH;
	unregister(s, index);
	return REFUSED;
}

/* Makes the segment echo no timestamp, so that the kernel takes no round trip from it. `at`: offset of the echo in
 * the TCP header, at any alignment. */
static __always_inline void clear_tsecr(struct __sk_buff *skb, const struct packet *p, __u32 at)
{
	__be32 old[2], new[2], none = 0;
	__u32 from = p->l4 + ((at - 1) & ~3u);	/* of the two words that contain the echo */
	if (bpf_skb_load_bytes(skb, from, old, 8) || bpf_skb_store_bytes(skb, p->l4 + at, &none, 4, 0))
		return;
	bpf_skb_load_bytes(skb, from, new, 8);
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, bpf_csum_diff(old, 8, new, 8, 0), 0);
}

/* The timestamp of the new socket at this moment: the kernel sets the socket's clock by it. The kernel's first
 * sample of the round-trip time is this clock less the echoed timestamp: the age of our SYN-ACK, rounded up. The age
 * is unknown where another node sent the SYN-ACK, or the client forged the echo. Then the clock continues from the
 * echo, and the first data is the first sample. */
static __always_inline __u32 socket_timestamp(struct __sk_buff *skb, const struct packet *p, const struct offer *offer)
{
	__u32 tsecr = bpf_ntohl(offer->tsecr), now = timestamp_now() + 1;
	if (now - tsecr <= ROUND_TRIP_MS_MAX)
		return now;
	clear_tsecr(skb, p, offer->tsecr_at);
	return tsecr;
}

static __always_inline void read_cookie(struct __sk_buff *skb, const struct packet *p, __u32 options,
					struct bpf_tcp_req_attrs *attrs)
{
	__u32 wscale = options >> 1 & 15, mss = mss_of(options >> 5);
	__u32 least = least_mss(skb->protocol == bpf_htons(ETH_P_IPV6));
	attrs->mss = mss < least ? least : mss;
	attrs->sack_ok = options & 1 && use_sack;	/* another node may have agreed to it */
	if (wscale != NO_WSCALE) {
		attrs->wscale_ok = 1;
		attrs->snd_wscale = wscale;
		attrs->rcv_wscale = OUR_WSCALE;
	}
	/* Agreed to wherever they stood in the SYN, so they may stand anywhere here (RFC 7323, section 3.2). */
	struct offer offer = {};
	__be32 ts[3];
	if (!use_timestamps || p->tcp.doff < 8)
		return;
	if (!bpf_skb_load_bytes(skb, p->l4 + 20, ts, 12) && ts[0] == bpf_htonl(0x0101080a)) {
		offer.has_ts = true;
		offer.tsval = ts[1];
		offer.tsecr = ts[2];
		offer.tsecr_at = 28;
	} else {
		read_offer(skb, p, &offer);
	}
	if (offer.has_ts) {
		attrs->tstamp_ok = 1;
		attrs->rcv_tsval = bpf_ntohl(offer.tsval);
		attrs->rcv_tsecr = socket_timestamp(skb, p, &offer);
	}
}

static __always_inline int accept_ack(struct __sk_buff *skb, struct packet *p)
{
	__u32 cookie = bpf_ntohl(p->tcp.ack_seq) - 1, theirs = bpf_ntohl(p->tcp.seq) - 1;
	bool v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	int verdict = TC_ACT_OK;
	struct bpf_sock *sk = find_socket(skb, p, v6);
	if (!sk)
		return TC_ACT_OK;
	if (sk->state != STATE_LISTEN)
		goto release;
	enum judgement judged = judge_cookie(&p->key, cookie, theirs);
	if (judged != FIRST) {
		count(COOKIE_WRONG);
		/* The first segment was lost or overtaken, and so was the ACK. The peer resends it, also when only
		 * its end is left; the overtaking segment may be the ACK of a repeated SYN-ACK. An RST would end the
		 * connection. Of forged segments one in 85 looks like that, and is left to its own timers, for three
		 * epochs at most. */
		if (judged == LATER)
			verdict = TC_ACT_SHOT;
		goto release;
	}
	struct sock *listener = (struct sock *)bpf_skc_to_tcp_sock(sk);
	struct bpf_tcp_req_attrs attrs = {};
	read_cookie(skb, p, cookie & 0xff, &attrs);
	verdict = TC_ACT_SHOT;		/* what cannot be gated does not start */
	enum registration registered = REFUSED;
	if (listener)
		registered = register_accepted(skb, p, &attrs, hash_bucket(&p->key));
	if (registered == REFUSED)
		goto release;
	if (!bpf_sk_assign_tcp_reqsk(skb, listener, &attrs, sizeof attrs)) {
		count(COOKIE_ACCEPTED);
		verdict = TC_ACT_OK;
	} else if (registered == FRESH) {
		withdraw(p);
	}
release:
	bpf_sk_release(sk);
	return verdict;
}

/* Whether a socket of this machine has the flow, most often in TIME_WAIT. A cookie does not help then: the ACK that
 * returns it would reach that socket and be ignored. The kernel lets a new connection follow a finished one (RFC
 * 6191), and makes a client refuse a connection that it has forgotten (RFC 5961, 4). */
static __always_inline bool has_socket(struct __sk_buff *skb, const struct packet *p)
{
	int state = socket_state(skb, p);
	return state && state != STATE_LISTEN;
}

/* A SYN with data is dropped (the checksum over the removed data could not be updated): our kernel's answer takes a
 * slot, and a flood of such SYNs would take all slots. Its sender resends it without data (RFC 7413, section 4.1.3). */
static __always_inline int accept_syn(struct __sk_buff *skb, struct packet *p)
{
	if (has_socket(skb, p))
		return leave_to_kernel(hash_bucket(&p->key));
	if (!p->data_len)
		return answer_syn(skb, p);
	count(SYN_DATA);
	return TC_ACT_SHOT;
}

SEC("tc") int stateless_accept(struct __sk_buff *skb)
{
	struct packet p;
	if (read_packet(skb, &p, false) != KIND_TCP)
		return TC_ACT_OK;
	struct listener l = { .port = p.key.local_port };
	__builtin_memcpy(l.ip, p.key.local_addr, 16);
	__u32 *flags = bpf_map_lookup_elem(&listeners, &l);
	if (!flags || !(*flags & LISTENER_STATELESS) || p.tcp.rst)
		return TC_ACT_OK;
	if (p.tcp.syn)
		return p.tcp.ack || p.tcp.fin ? TC_ACT_OK : accept_syn(skb, &p);
	return p.tcp.ack ? accept_ack(skb, &p) : TC_ACT_OK;
}

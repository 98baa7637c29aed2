/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The gate: no ACK, FIN or RST of a gated flow leaves before the program released it; owner.h decides whose packets
 * they are. Attached as tc clsact filters by netlink, so that it stays when the process dies.
 *
 * A flow is gated when its local address is in `addresses` and its port is in `listeners` or in a server-leg block.
 * It is registered here before its first data: passive at our SYN-ACK, active at our SYN. A flow that cannot be
 * registered may not start. All other traffic of the interface passes untouched.
 *
 * Packets are dropped with TC_ACT_STOLEN, not TC_ACT_SHOT: TCP takes SHOT for a local failure and parks the data. */
#include "error.h"
#include "neighbour.h"
#include "offer.h"
#include "socket.h"

char LICENSE[] SEC("license") = "GPL";

/* ---- registration ---- */

static __always_inline void fill_slot(struct __sk_buff *skb, const struct packet *p, struct slot *s, __u32 bucket,
				      __u16 generation)
{
	struct offer offer;
	__u32 ack = bpf_ntohl(p->tcp.ack_seq), next = bpf_ntohl(p->tcp.seq) + 1;
	read_offer(skb, p, &offer);
	__builtin_memset(s, 0, sizeof *s);
	s->committed = s->k_ack = s->sent_ack = ack;
	s->k_edge = s->sent_edge = ack + bpf_ntohs(p->tcp.window);	/* never scaled in a SYN */
	s->snd_nxt = s->snd_una = s->peer_ack = next;
	s->syn_sent = !p->tcp.ack;
	s->key = p->key;
	s->wscale = offer.wscale;
	s->has_ts = offer.has_ts;
	s->tsval = offer.tsval;
	s->tsecr = offer.tsecr;		/* none yet in a SYN */
	s->ifindex = skb->ifindex;
	s->bucket = bucket;
	s->generation = generation;
	s->born_ns = now_ns();
	bpf_skb_load_bytes(skb, 0, s->eth, 14);
}

/* Counts a connection whose SYN our kernel answers; again if it answers again. */
static __always_inline void greet(struct slot *s, const struct packet *p, __u32 bucket)
{
	struct greeting *g = p->tcp.ack ? bpf_map_lookup_elem(&greetings, &bucket) : 0;
	if (!g)
		return;
	WRITE(g->newest_ns, now_ns());
	if (!__sync_val_compare_and_swap(&s->greeted, 0, 1))
		__sync_fetch_and_add(&g->count, 1);
}

/* Our SYN or SYN-ACK of a flow that is not registered, or registered with another sequence number. */
static __always_inline int register_flow(struct __sk_buff *skb, const struct packet *p, __u32 bucket)
{
	__u32 index;
	struct slot *s = slot_of(&p->key, &index);
	if (s && s->snd_nxt == bpf_ntohl(p->tcp.seq) + 1 && !s->established)
		return TC_ACT_OK;				/* sent again */
	if (s && !(READ(s->flags) & FLAG_RECOVERED)) {		/* an abandoned attempt */
		__u32 greeted = s->greeted;
		fill_slot(skb, p, s, bucket, s->generation + 1);
		s->greeted = greeted;
		greet(s, p, bucket);
		return TC_ACT_OK;
	}
	if (bpf_map_pop_elem(&free_slots, &index)) {
		count(NO_SLOT);
		return TC_ACT_STOLEN;
	}
	s = bpf_map_lookup_elem(&slots, &index);
	if (!s)
		return TC_ACT_STOLEN;
	fill_slot(skb, p, s, bucket, s->generation + 1);
	if (bpf_map_update_elem(&flows, &p->key, &index, BPF_ANY)) {
		s->born_ns = 0;
		bpf_map_push_elem(&free_slots, &index, 0);
		count(NO_SLOT);
		return TC_ACT_STOLEN;
	}
	greet(s, p, bucket);
	return TC_ACT_OK;
}

/* ---- egress ---- */

/* Timestamps of a template are the flow's newest. */
static __always_inline void stamp(struct __sk_buff *skb, const struct packet *p, struct slot *s)
{
	__be32 ts[2] = { s->tsval, s->tsecr }, old[2];
	if (bpf_skb_load_bytes(skb, p->l4 + 24, old, 8))
		return;
	REPLACE_TCP(skb, p, 24, old, ts, 8);
}

/* Records a packet of our kernel; true when it repeats itself (the peer retransmitted or probed). */
static __always_inline bool note_kernel(struct __sk_buff *skb, const struct packet *p, struct slot *s, __u32 edge,
					bool fin)
{
	__u32 ack = bpf_ntohl(p->tcp.ack_seq), end = bpf_ntohl(p->tcp.seq) + p->data_len + fin;
	bool again = ack == s->k_ack && edge == s->k_edge;
	if (!before(ack, s->k_ack)) {		/* a probe carries an old ACK: nothing goes backwards */
		s->k_ack = ack;
		s->k_edge = edge;
	}
	if (after(end, s->snd_nxt)) {
		if (after(end, s->ahead_max))	/* first, so that it is never below */
			WRITE(s->ahead_max, end);
		WRITE(s->snd_nxt, end);
	}
	__be32 ts[2];
	if (s->has_ts && p->tcp.doff >= 8 && !bpf_skb_load_bytes(skb, p->l4 + 24, ts, 8)) {
		s->tsval = ts[0];
	/* a restored socket echoes 0 until a segment of the peer arrives */
		if (ts[1] && (__s32)(bpf_ntohl(ts[1]) - bpf_ntohl(s->tsecr)) > 0)
			s->tsecr = ts[1];
	}
	return again;
}

/* A clamped pure ACK without news is dropped, unless the peer runs short of credit or waits for an answer. */
static __always_inline bool is_redundant(struct slot *s, __u32 ack, __u32 edge, __u32 win, bool again)
{
	__s32 left = s->sent_edge - ack, offered = edge - ack;
	if (win > s->sent_win && 2 * left < offered)
		return false;
	__u64 now = now_ns();
	if (again && now - s->answered_ns > repeat_ns) {
		s->answered_ns = now;
		return false;
	}
	return true;
}

/* SACK blocks above a lowered ACK would report data that may yet be lost to the peer: NOP them out. Our kernel writes
 * NOP NOP SACK after the timestamps. */
#define HIDE_SACK(n) do { \
	__u32 nop_[n / 4], old_[n / 4]; \
	__builtin_memset(nop_, 1, n); \
	if (!bpf_skb_load_bytes(skb, p->l4 + at, old_, n) \
	    && (old_[0] & bpf_htonl(0xffffff00)) == bpf_htonl(0x01010500)) { \
		REPLACE_TCP(skb, p, at, old_, nop_, n); \
		count(SACK_HIDDEN); \
	} \
} while (0)

static __always_inline void hide_sack(struct __sk_buff *skb, const struct packet *p, bool has_ts)
{
	__u32 at = 20 + (has_ts ? 12 : 0), len = p->tcp.doff * 4 - at;
	if (len == 12)
		HIDE_SACK(12);
	else if (len == 20)
		HIDE_SACK(20);
	else if (len == 28)
		HIDE_SACK(28);
	else if (len == 36)
		HIDE_SACK(36);
}

/* A RST ends the flow for the program that accepts it. A slot that no program holds stays for the sweep. */
static __always_inline void note_reset(struct slot *s)
{
	if (READ(s->flags) & FLAG_RECOVERED)
		__sync_fetch_and_or(&s->flags, FLAG_GONE);
}

/* Our own ACKs take the path of our kernel's packets of the flow, also when the path changes: another gateway is
 * active, or the route has changed. A reader during the write may see half of both: at worst one ACK is lost, and
 * the next one repairs that. */
static __always_inline void note_path(struct __sk_buff *skb, struct slot *s, __u32 flags)
{
	const __be32 *now = (void *)(long)skb->data, *known = (void *)s->eth;
	if ((void *)(now + 3) > (void *)(long)skb->data_end || now[0] != known[0] || now[1] != known[1]
	    || now[2] != known[2] || skb->ifindex != s->ifindex) {
		bpf_skb_load_bytes(skb, 0, s->eth, 14);
		s->ifindex = skb->ifindex;		/* that header is right there only */
	}
	if (flags & FLAG_LEARN)
		__sync_fetch_and_and(&s->flags, ~FLAG_LEARN);
}

static __always_inline int egress_flow(struct __sk_buff *skb, struct packet *p, struct slot *s)
{
	__u32 flags = READ(s->flags), committed = READ(s->committed), ws = s->wscale & 15;
	struct tcphdr th = p->tcp;
	bool template = skb->mark == template_mark, open = flags & FLAG_OPEN;
	if (!template)
		note_path(skb, s, flags);
	if (th.rst && !th.ack && READ(s->syn_sent)) {
		/* RFC 9293 section 3.5.1: a server still has a connection from this port, of a node that is dead.
		 * Nothing of ours depends on it; without this answer our SYN would be repeated until the connect
		 * times out. */
		return TC_ACT_OK;
	}
	if (th.rst && !(flags & (FLAG_RST | FLAG_OPEN))) {
		count(RST_HELD);
		return TC_ACT_STOLEN;
	}
	if (th.fin && !(flags & (FLAG_FIN | FLAG_OPEN))) {
		count(FIN_HELD);
		if (!p->data_len)
			return TC_ACT_STOLEN;
		th.fin = 0;
	}
	__u32 seq = bpf_ntohl(th.seq), ack = bpf_ntohl(th.ack_seq), edge;
	bool again = false, pure = !p->data_len && !th.fin && !th.rst;
	if (template) {
		seq = s->snd_nxt;
		ack = committed;
		edge = s->k_edge;
		if (s->has_ts)
			stamp(skb, p, s);
		count(ACK_EMITTED);
	} else {
		edge = ack + ((__u32)bpf_ntohs(th.window) << ws);
		again = note_kernel(skb, p, s, edge, th.fin);
	}
	__u32 out = before(committed, ack) && !open ? committed : ack;
	bool clamped = out != ack, probe = pure && !template && seq != s->snd_nxt;
	/* a restored flow that is given up while its peer has more than was made again: an end below that would be
	 * ignored */
	bool gives_up = (th.fin || th.rst) && !p->data_len && open && flags & FLAG_RESTORED;
	__u32 win = (__s32)(edge - out) < 0 ? 0 : (edge - out) >> ws;
	if (win > 65535)
		win = 65535;
	if (((pure && !probe) || gives_up) && before(seq, s->peer_ack)) {
		/* after a failover the peer may be ahead of our kernel and would ignore our ACKs as old */
		seq = s->peer_ack;
		count(SEQ_RAISED);
	}
	if (clamped) {
		if (pure && !template && !probe && out == s->sent_ack && is_redundant(s, ack, edge, win, again)) {
			count(ACK_DROPPED);
			return TC_ACT_STOLEN;
		}
		hide_sack(skb, p, s->has_ts);
		count(CLAMPED);
	}
	th.seq = bpf_htonl(seq);
	th.ack_seq = bpf_htonl(out);
	if (clamped || template)
		th.window = bpf_htons(win);
	__u32 *was = (__u32 *)&p->tcp, *is = (__u32 *)&th;
	if (was[1] != is[1] || was[2] != is[2] || was[3] != is[3])
		REPLACE_TCP(skb, p, 4, was + 1, is + 1, 12);
	if (th.rst)
		note_reset(s);
	if (!before(out, s->sent_ack)) {
		s->sent_ack = out;
		s->sent_win = win;
		if (after(out + (win << ws), s->sent_edge))
			s->sent_edge = out + (win << ws);
	}
	return TC_ACT_OK;
}

/* Whether a listener exists where the packet comes from: a dead process has left its lease, but no listener. */
static __always_inline bool is_listened(struct __sk_buff *skb, const struct packet *p)
{
	return socket_state(skb, p) == STATE_LISTEN;
}

/* Connections of the bucket may have no socket yet. */
static __always_inline bool is_pending(__u32 bucket)
{
	__u64 *lane_word = bpf_map_lookup_elem(&pending, &bucket);
	return lane_word && READ(*lane_word);
}

static __always_inline int egress_unregistered(struct __sk_buff *skb, struct packet *p)
{
	__u32 bucket = 0, zero = 0;
	enum role role = role_of(&p->key, &bucket);
	if (role == ROLE_NONE)
		return TC_ACT_OK;
	if (!may_send(bucket))
		return TC_ACT_STOLEN;
	if (role == ROLE_ADDRESS)
		return TC_ACT_OK;
	if (p->tcp.syn)		/* an answer with a cookie is no state yet: the flow is registered when the peer returns it */
		return skb->mark == cookie_mark ? TC_ACT_OK : register_flow(skb, p, bucket);
	if (p->tcp.rst && p->tcp.ack && !p->tcp.seq) {
		/* RFC 9293 section 3.10.7.1: the answer to a SYN. A listener whose port is closed is one whose
		 * process died while our lease still runs: the peer retries, and the bucket's next owner answers. */
		count(RST_HELD);
		return TC_ACT_STOLEN;
	}
	if (p->tcp.rst && role == ROLE_LISTENER && is_pending(bucket)) {
		/* A client whose connection is not recovered yet sends a keep-alive, or its end: our kernel knows
		 * neither. */
		count(RST_HELD);
		return TC_ACT_STOLEN;
	}
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	/* A flow that no program has accepted may continue at another node: only a live process may refuse it. */
	if (p->tcp.rst && set && READ(set->reset_unknown) && (role != ROLE_LISTENER || is_listened(skb, p)))
		return TC_ACT_OK;
	if (!p->tcp.rst && !p->tcp.fin && !p->data_len)
		return TC_ACT_OK;		/* the last ACKs of a finished flow (TIME_WAIT) */
	count(UNREGISTERED);
	return TC_ACT_STOLEN;
}

/* Not TCP, or malformed TCP: our addresses may send only while our own lease holds. */
static __always_inline int egress_other(struct __sk_buff *skb, struct packet *p)
{
	if (!node)
		return TC_ACT_OK;
	if (p->protocol == IPPROTO_ICMPV6 && !advertisement_allowed(skb)) {
		count(NEIGHBOUR_HELD);
		return TC_ACT_STOLEN;
	}
	if (!bpf_map_lookup_elem(&addresses, p->key.local_addr) || !lease_over(0, now_ns()))
		return TC_ACT_OK;
	count(FENCED);
	return TC_ACT_STOLEN;
}

SEC("tc") int gate_egress(struct __sk_buff *skb)
{
	struct packet p;
	enum kind kind = read_packet(skb, &p, true);
	if (kind == KIND_OTHER)
		return TC_ACT_OK;
	if (kind == KIND_ARP)
		return egress_arp(skb);
	if (kind != KIND_TCP)
		return egress_other(skb, &p);
	__u32 index;
	struct slot *s = slot_of(&p.key, &index);
	if (!s)
		return egress_unregistered(skb, &p);
	if (!may_send(s->bucket))
		return TC_ACT_STOLEN;
	if (p.tcp.syn)
		return skb->mark == cookie_mark ? TC_ACT_OK : register_flow(skb, &p, s->bucket);
	return egress_flow(skb, &p, s);
}

/* ---- ingress ---- */

/* The SYN-ACK to our SYN has the agreed options. */
static __always_inline void complete(struct __sk_buff *skb, const struct packet *p, struct slot *s)
{
	struct offer offer;
	if (!READ(s->syn_sent) || bpf_ntohl(p->tcp.ack_seq) != s->snd_nxt)
		return;
	read_offer(skb, p, &offer);
	if (!offer.wscale_present)
		s->wscale = 0;
	if (!offer.has_ts)
		s->has_ts = 0;
	s->tsecr = offer.tsval;
	s->k_ack = s->sent_ack = s->k_edge = s->sent_edge = bpf_ntohl(p->tcp.seq) + 1;
	WRITE(s->committed, bpf_ntohl(p->tcp.seq) + 1);
	s->established = 1;
	WRITE(s->syn_sent, 0);
}

/* Would the kernel process this segment's ACK? The same window and timestamp test, so that a blind guess does not
 * move the position that we record for the peer. `tsecr`: set when the segment carries a newer timestamp of the peer
 * to echo. */
static __always_inline bool plausible(struct __sk_buff *skb, const struct packet *p, struct slot *s, __be32 *tsecr)
{
	__u32 seq = bpf_ntohl(p->tcp.seq), end = seq + p->data_len + p->tcp.fin;
	if (before(end, s->k_ack) || after(seq, s->k_edge))
		return false;
	if (!s->has_ts)
		return true;
	__be32 ts[3];
	if (p->tcp.doff < 8 || bpf_skb_load_bytes(skb, p->l4 + 20, ts, 12) || ts[0] != bpf_htonl(0x0101080a))
		return true;		/* in another place of the header: the kernel finds them */
	/* a flow that was restored without asking its peer knows no timestamp of it */
	__s32 newer = s->tsecr ? bpf_ntohl(ts[1]) - bpf_ntohl(s->tsecr) : 1;
	/* an ACK of ours with an old echo would make the peer take a genuine retransmission for a spurious one */
	if (newer > 0 && !after(seq, s->k_ack))
		*tsecr = ts[1];
	return newer >= 0;
}

static __always_inline void wake(struct slot *s, __u32 index, __u32 ack)
{
	if (!READ(s->armed) || before(ack, READ(s->wake_at)))
		return;
	if (!__sync_val_compare_and_swap(&s->armed, 1, 0))
		return;
	__u32 lane = READ(s->flags) >> PORT_SHIFT;
	void *ring = bpf_map_lookup_elem(&events, &lane);
	if (!ring || bpf_ringbuf_output(ring, &index, sizeof index, 0))
		count(EVENT_LOST);
}

/* Diverts a segment with data of an unknown flow, in a bucket whose connections are being recovered, to the program
 * that makes its socket. Events of live flows come first: at most half of the ring is for this. False for any other
 * segment. A diverted segment must not reach the kernel, which may find the socket by then: it would have the same
 * bytes twice. */
static __always_inline bool divert(struct __sk_buff *skb, const struct packet *p, __u32 bucket)
{
	__u64 *lane_word = bpf_map_lookup_elem(&pending, &bucket);
	__u32 zero = 0, len = p->tcp.doff * 4 + p->data_len;
	if (!lane_word || !READ(*lane_word) || !p->data_len || !p->tcp.ack || p->tcp.syn || p->tcp.rst)
		return false;
	__u32 lane = READ(*lane_word) - 1;
	void *ring = bpf_map_lookup_elem(&events, &lane);
	struct early_segment *k = bpf_map_lookup_elem(&early_buffer, &zero);
	if (!ring || !k || (owner_word(bucket) & 0xff) != node)
		return false;
	if (len > EARLY_MAX)
		len = p->tcp.doff * 4;		/* too long: the program gets the header, and the peer resends the data */
	if (2 * bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(ring, BPF_RB_RING_SIZE)) {
		count(EVENT_LOST);
		return true;		/* resent before long */
	}
	len = ((len - 1) & (EARLY_MAX - 1)) + 1;	/* what the verifier wants to see */
	k->key = p->key;
	if (bpf_skb_load_bytes(skb, p->l4, k->segment, len)
	    || bpf_ringbuf_output(ring, k, sizeof k->key + len, 0)) {
		count(EVENT_LOST);
		return true;
	}
	count(EARLY_SEGMENT);
	return true;
}

/* How far the peer of a restored flow may have been sent to. For some seconds the highest edge counts, because segments
 * may be reordered. Then our kernel's own output catches up, and from there on only its output can be acknowledged. */
static __always_inline void note_room(const struct packet *p, struct slot *s, __u32 ack, __u32 next)
{
	if (s->room_known) {
		if (before(s->room, next))
			s->room = next;		/* numbers wrap around: it stays near */
		return;
	}
	/* rounded down on the wire; and an end takes no room */
	__u32 edge = ack + ((bpf_ntohs(p->tcp.window) + 1) << (READ(s->peer_wscale) & 15));
	__u64 now = now_ns(), first = s->received_ns;
	if (before(edge, first ? s->room : s->peer_ack))
		edge = first ? s->room : s->peer_ack;
	WRITE(s->room, edge);
	if (!first)
		WRITE(s->received_ns, now);
	else if (now - first > room_ns)
		s->room_known = 1;
}

static __always_inline int ingress_flow(struct __sk_buff *skb, struct packet *p, struct slot *s, __u32 index)
{
	if (p->tcp.syn && p->tcp.ack)
		complete(skb, p, s);
	if (p->tcp.rst && !p->tcp.syn && bpf_ntohl(p->tcp.seq) == s->sent_ack && after(s->k_ack, s->sent_ack)) {
		/* A peer whose socket is gone refuses by the ACK that it received; our kernel knows only its own
		 * (RFC 5961, 3.2). */
		__be32 known = bpf_htonl(s->k_ack);
		REPLACE_TCP(skb, p, 4, &p->tcp.seq, &known, 4);
		note_reset(s);
		return TC_ACT_OK;
	}
	if (p->tcp.rst && !p->tcp.syn && bpf_ntohl(p->tcp.seq) == s->k_ack)
		note_reset(s);
	__be32 tsecr = 0;
	if (!p->tcp.ack || p->tcp.syn || p->tcp.rst || !plausible(skb, p, s, &tsecr))
		return TC_ACT_OK;
	__u32 ack = bpf_ntohl(p->tcp.ack_seq), next = READ(s->snd_nxt);
	if (after(ack, next) && after(ack, peer_max(s)))
		return TC_ACT_OK;	/* our kernel refuses it */
	if (READ(s->flags) & FLAG_RESTORED)
		note_room(p, s, ack, next);
	if (after(ack, next)) {
		if (after(ack, s->peer_ack))
			WRITE(s->peer_ack, ack);
		__be32 lower = bpf_htonl(next);
		REPLACE_TCP(skb, p, 8, &p->tcp.ack_seq, &lower, 4);
		count(ACK_LOWERED);
		ack = next;
	} else if (after(ack, s->peer_ack)) {
		WRITE(s->peer_ack, ack);
	}
	if (!s->established)
		s->established = 1;
	/* As in the kernel, an old ACK proves nothing: a timestamp far ahead would make the peer's segments look
	 * old. */
	if (tsecr && !before(ack, s->snd_una))
		s->tsecr = tsecr;
	if (after(ack, s->snd_una)) {
		WRITE(s->snd_una, ack);
		wake(s, index, ack);
	}
	return TC_ACT_OK;
}

/* Frames for the virtual MAC count as ours; frames for anybody else do not, whatever a flooding switch delivers. */
static __always_inline bool accept_frame(struct __sk_buff *skb, const struct packet *p, bool *stray)
{
	__u8 to[6];
	if (skb->pkt_type == PACKET_HOST)
		return true;
	struct address_info *info = bpf_map_lookup_elem(&addresses, p->key.local_addr);
	if (!info || bpf_skb_load_bytes(skb, 0, to, 6) || !same_mac(to, info->mac))
		return false;
	*stray = (owner_word(info->bucket) & 0xff) != node;
	bpf_skb_change_type(skb, PACKET_HOST);
	return true;
}

static __always_inline int ingress_other(struct __sk_buff *skb, struct packet *p, enum kind kind)
{
	if (p->protocol == IPPROTO_ICMPV6) {
		int verdict = ingress_solicitation(skb, p);
		if (verdict >= 0)
			return verdict;
	}
	bool stray = false;
	if (!node || !bpf_map_lookup_elem(&addresses, p->key.local_addr))
		return TC_ACT_OK;
	if (kind == KIND_ODD) {			/* could carry TCP past the owner table */
		count(UNSTEERABLE);
		return TC_ACT_SHOT;
	}
	__u32 bucket = 0;
	if (!accept_frame(skb, p, &stray))
		return TC_ACT_OK;
	if (error_about(skb, p, &bucket)) {
		int verdict = steer(skb, p, bucket, stray, 0);
		return verdict >= 0 ? verdict : TC_ACT_OK;
	}
	if (!stray)
		return TC_ACT_OK;
	count(NOT_OURS);		/* every node has it, and the node that answers ARP also answers this */
	return TC_ACT_SHOT;
}

SEC("tc") int gate_ingress(struct __sk_buff *skb)
{
	struct packet p;
	enum kind kind = read_packet(skb, &p, false);
	if (kind == KIND_OTHER)
		return TC_ACT_OK;
	if (kind == KIND_ARP)
		return ingress_arp(skb);
	if (kind != KIND_TCP)
		return ingress_other(skb, &p, kind);
	__u32 index = 0, bucket = 0;
	enum role role = ROLE_NONE;
	struct slot *s = slot_of(&p.key, &index);
	if (s)
		bucket = s->bucket;
	else if ((role = role_of(&p.key, &bucket)) == ROLE_NONE)
		return TC_ACT_OK;
	bool stray = false;
	if (!accept_frame(skb, &p, &stray))
		return TC_ACT_OK;
	bool asleep = s && READ(s->flags) & FLAG_ASLEEP;
	bool diverted = (asleep || (!s && role == ROLE_LISTENER)) && divert(skb, &p, bucket);
	int verdict = steer(skb, &p, bucket, stray, s);
	if (verdict >= 0)
		return verdict;
	if (asleep || diverted) {
		/* The kernel finds a socket in repair mode, and would put this where what came before is put now. */
		count(HELD);
		return TC_ACT_SHOT;
	}
	if (s)
		verdict = ingress_flow(skb, &p, s, index);
	else
		verdict = TC_ACT_OK;
	/* No program has accepted it yet: the stateless accept, if attached, looks at it next. */
	bool young = s ? !(READ(s->flags) & FLAG_RECOVERED) : role == ROLE_LISTENER;
	return young ? TC_ACT_UNSPEC : verdict;
}

/* ---- emission of ACKs: BPF_PROG_TEST_RUN with an empty frame whose first four bytes name the lane ---- */

struct template { struct tcphdr tcp; __be32 ts[3]; };

static __always_inline int emit(struct __sk_buff *skb, __u32 index, bool v6)
{
	struct slot *s = bpf_map_lookup_elem(&slots, &index);
	if (!s || READ(s->flags) & FLAG_LEARN)
		return 0;		/* our kernel's next packet carries it */
	struct template t = { .tcp = { .source = s->key.local_port, .dest = s->key.remote_port, .doff = 8, .ack = 1 } };
	t.ts[0] = s->has_ts ? bpf_htonl(0x0101080a) : bpf_htonl(0x01010101);
	t.ts[1] = t.ts[2] = s->has_ts ? 0 : bpf_htonl(0x01010101);
	__u32 l4;
	__u64 sum;
	bpf_skb_store_bytes(skb, 0, s->eth, 14, 0);
	if (v6) {
		struct ipv6hdr ip = { .version = 6, .nexthdr = IPPROTO_TCP, .hop_limit = 64,
				      .payload_len = bpf_htons(sizeof t) };
		__builtin_memcpy(ip.saddr, s->key.local_addr, 16);
		__builtin_memcpy(ip.daddr, s->key.remote_addr, 16);
		sum = bpf_csum_diff(0, 0, ip.saddr, 32, bpf_htonl(sizeof t + IPPROTO_TCP));
		bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, 0);
		l4 = 54;
	} else {
		struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP,
				    .frag_off = bpf_htons(0x4000), .tot_len = bpf_htons(20 + sizeof t),
				    .saddr = s->key.local_addr[3], .daddr = s->key.remote_addr[3] };
		ip.check = fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof ip, 0));
		sum = bpf_csum_diff(0, 0, &ip.saddr, 8, bpf_htonl(sizeof t + IPPROTO_TCP));
		bpf_skb_store_bytes(skb, 14, &ip, sizeof ip, 0);
		l4 = 34;
	}
	t.tcp.check = fold(bpf_csum_diff(0, 0, (__be32 *)&t, sizeof t, sum));
	bpf_skb_store_bytes(skb, l4, &t, sizeof t, 0);
	skb->mark = template_mark;
	return bpf_clone_redirect(skb, s->ifindex, 0);
}

struct emission { struct __sk_buff *skb; struct batch *batch; int failed; bool v6; };

static long emit_next(__u32 i, struct emission *e)
{
	if (i >= BATCH)
		return 1;
	if (emit(e->skb, e->batch->slot[i], e->v6))
		e->failed++;
	return 0;
}

SEC("tc") int gate_emit(struct __sk_buff *skb)
{
	__u32 lane;
	if (bpf_skb_load_bytes(skb, 0, &lane, sizeof lane))
		return 0;
	struct batch *batch = bpf_map_lookup_elem(&batches, &lane);
	if (!batch)
		return 0;
	struct emission e = { .skb = skb, .batch = batch, .v6 = skb->protocol == bpf_htons(ETH_P_IPV6) };
	bpf_loop(READ(batch->count), emit_next, &e, 0);
	return e.failed;
}

/* ---- the clock: BPF_PROG_TEST_RUN with a frame whose first eight bytes become the time ---- */

SEC("tc") int gate_clock(struct __sk_buff *skb)
{
	__u64 now = now_ns();
	return bpf_skb_store_bytes(skb, 0, &now, sizeof now, 0);
}

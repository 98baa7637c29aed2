//! One exchange: a request and its response, from the parsed head to the logged response.
//!
//! Invariants:
//! - The number of an exchange is that of its request, of its response, and of its entries.
//! - HTTP/1.1 answers in order: one exchange is live. Its request may be whole before its response begins; the number
//!   of the request to receive is then one ahead. After a failover a client may repeat requests that are answered: the
//!   number of the request to receive is then behind, and the request is passed over.
//!
//! The server leg of an exchange is in `server_legs`, named by its route.

use crate::RequestLog;
use evergate_base::Protocol;
use evergate_http::Body;
use std::cmp::Ordering;
use std::net::IpAddr;

/// Where the client's stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// Before or inside the ClientHello that decides about a tunnel (what there is of it lies in `plain`).
    Greeting,
    /// Before or inside a request head (what there is of it lies in `plain`).
    Head,
    /// Holding a head until the rules have seen enough of the body.
    Prefix,
    /// Inside a request body that goes to the leg.
    Body(Body),
    /// Inside a request body that no server wants: it is read and dropped so that the connection can continue.
    Skip(Body),
    /// Opaque bytes to the leg.
    Tunnel,
    /// Nothing more is taken from the client.
    Ended,
}

/// How far a body was looked through that the rules must see, in bytes of `plain`.
#[derive(Clone, Debug)]
pub(crate) struct BodyPrefixScan {
    pub(crate) body: Body,
    pub(crate) at: usize,
    /// Bytes that were there when it was looked at last.
    pub(crate) seen: usize,
    /// With so many bytes there may be enough of it before its end.
    pub(crate) enough: usize,
}

/// Where the server's stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// Before or inside a response head.
    Head,
    /// Inside a response body.
    Body(Body),
    /// Opaque bytes to the client.
    Tunnel,
    /// Nothing more is taken from a server.
    Ended,
}

/// A request and its response.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Number of the request that is received, or is received next.
    request: u32,
    /// Number of the response that is sent, or is sent next.
    response: u32,
    pub(crate) receiving: RequestState,
    pub(crate) answering: ResponseState,
    /// Progress through a body that the rules must see.
    pub(crate) prefix: Option<Box<BodyPrefixScan>>,
    /// The response is the connection's last.
    pub(crate) last_response: bool,
    /// The client that a trusted proxy names in the request's head; nothing when the peer is the client.
    pub(crate) client: Option<IpAddr>,
    /// 100 Continue was sent to the client although no server has been asked yet.
    pub(crate) continued: bool,
    /// The access log's line, as far as it is known.
    pub(crate) log: Option<Box<RequestLog>>,
    /// Status of the response, and the reason of one of our own.
    pub(crate) status: (u16, &'static str),
    /// Pool of the request, as an index of the snapshot's.
    pub(crate) status_pool: Option<u32>,
}

impl Exchange {
    /// The first exchange of a connection.
    pub(crate) fn first(protocol: Protocol) -> Exchange {
        let http = protocol.is_http();
        Exchange {
            request: 0,
            response: 0,
            receiving: first_state(protocol),
            answering: if http { ResponseState::Head } else { ResponseState::Tunnel },
            prefix: None,
            last_response: false,
            client: None,
            continued: false,
            log: None,
            status: (0, ""),
            status_pool: None,
        }
    }

    /// Number of the exchange: of the response that is sent, or is sent next.
    pub(crate) fn number(&self) -> u32 {
        self.response
    }

    /// Number of the request that is received, or is received next.
    pub(crate) fn request(&self) -> u32 {
        self.request
    }

    /// How much of the exchange's request was received, by numbers: `Less` when an answered request comes again,
    /// `Equal` when the request is not whole, `Greater` when the request is whole and its response is not.
    pub(crate) fn order(&self) -> Ordering {
        self.request.cmp(&self.response)
    }

    /// Whether the request is whole, and the response is not.
    pub(crate) fn is_request_whole(&self) -> bool {
        self.order() == Ordering::Greater
    }

    /// Whether the request that is received has its response already.
    pub(crate) fn is_answered(&self) -> bool {
        self.order() == Ordering::Less
    }

    /// Bytes that a response body of known length still lacks; 0 without such a body.
    pub(crate) fn body_left(&self) -> u64 {
        match self.answering {
            ResponseState::Body(Body::Length { left }) => left,
            _ => 0,
        }
    }

    /// Puts a replicated or exported exchange back.
    pub(crate) fn restore_numbers(&mut self, request: u32, response: u32) {
        (self.request, self.response) = (request, response);
    }

    /// Does not compile when an exchange has another field: see [`crate::Connection::export`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let Exchange {
            request: _, response: _, receiving: _, answering: _, last_response: _, client: _, continued: _, log: _,
            status: _,
            prefix: _, // begins again
            status_pool: _, // follows from the leg
        } = self;
    }

    /// The request was received as a whole; `next` is what the client's stream has behind it.
    pub(crate) fn end_request(&mut self, next: RequestState) {
        self.request += 1;
        self.receiving = next;
    }

    /// The response was sent as a whole.
    pub(crate) fn end_response(&mut self) {
        self.response += 1;
    }
}

/// What a client's stream begins with.
pub(crate) fn first_state(protocol: Protocol) -> RequestState {
    match protocol {
        Protocol::Https | Protocol::Http => RequestState::Head,
        Protocol::Passthrough => RequestState::Greeting,
        Protocol::Tls | Protocol::Tcp => RequestState::Tunnel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_is_over_when_both_messages_are() {
        let mut exchange = Exchange::first(Protocol::Http);
        assert_eq!((exchange.number(), exchange.is_request_whole()), (0, false));
        exchange.end_request(RequestState::Head);
        assert_eq!((exchange.number(), exchange.request(), exchange.is_request_whole()), (0, 1, true));
        exchange.end_response();
        assert_eq!((exchange.number(), exchange.order()), (1, Ordering::Equal));
    }

    #[test]
    fn early_response_leaves_a_request_that_is_passed_over() {
        let mut exchange = Exchange::first(Protocol::Http);
        exchange.end_response();
        assert!(exchange.is_answered() && !exchange.is_request_whole());
        exchange.end_request(RequestState::Head);
        assert_eq!((exchange.number(), exchange.order()), (1, Ordering::Equal));
    }
}

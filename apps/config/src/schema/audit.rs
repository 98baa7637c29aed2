//! Schema of audited capture in the switch.

use super::{Key, Kind, Section, optional, required, with_default};

/// `[audit]`
pub(crate) static AUDIT: Section = Section {
    header: "[audit]",
    about: "Audited capture: where the sealed secrets of audited connections go, and which keys seal them.",
    keys: &[
        required(
            "epochs",
            Kind::Text,
            "\"/var/lib/evergate/audit/epochs\"",
            "File of the epochs' public keys, as the Master publishes it. It is read again when it changes.",
        ),
        required(
            "log_key",
            Kind::Text,
            "\"audit.example/2026+5a1b2c3d+AV0n3WcVLAb6Ng4k5N9Hl1rG0vnT8Z5kmHq7cHhBfOeL\"",
            "Key of the Master's log, as `evergate-master` prints it. It signs the file of epochs.",
        ),
        with_default(
            "feed",
            Kind::Text,
            "\"/run/evergate-audit/feed.sock\"",
            "Where a Recorder listens (`evergate-audit record --feed`): the path of a Unix socket, or \
                `\"HOST:PORT\"` for TLS.",
        ),
        optional(
            "recorder",
            Kind::Text,
            "none; required for `\"HOST:PORT\"`",
            "\"5f0c…\"",
            "Id of the Recorder's certificate, 64 hexadecimal digits: `evergate-audit identity` prints it.",
        ),
        optional(
            "certificate",
            Kind::Text,
            "none; required for `\"HOST:PORT\"`",
            "\"/etc/evergate/feed.pem\"",
            "Certificate of this switch for the feed, in PEM. Its id names the switch.",
        ),
        optional(
            "key",
            Kind::Text,
            "none; required for `\"HOST:PORT\"`",
            "\"/etc/evergate/feed.key\"",
            "Private key of `certificate`, in PEM.",
        ),
        with_default(
            "on_loss",
            Kind::Choice(&["continue", "refuse"]),
            "\"continue\"",
            "What happens when secrets cannot be sealed or the feed is full: `continue` serves clients, and \
                the record declares the loss. `refuse` refuses new connections of audited listeners.",
        ),
    ],
};

/// `audit` of a listener.
pub(crate) const LISTENER_AUDIT: Key = with_default(
    "audit",
    Kind::Bool,
    "false",
    "Whether the secrets of each connection are sealed for disclosure and its requests recorded (`https` and \
        `tls`; needs `[audit]`). Its TLS 1.2 sessions are never resumed.",
);

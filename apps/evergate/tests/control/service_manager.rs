//! Service manager: the datagram socket to which a node sends its state, by sd_notify(3).

use crate::node::{DEADLINE, Folder};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    /// Path that the node gets as `NOTIFY_SOCKET`.
    pub(crate) path: PathBuf,
}

impl ServiceManager {
    pub(crate) fn new(folder: &Folder) -> ServiceManager {
        let path = folder.path("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        ServiceManager { socket, path }
    }

    /// Next message.
    pub(crate) fn next(&self) -> String {
        let mut buffer = [0; 512];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }
}

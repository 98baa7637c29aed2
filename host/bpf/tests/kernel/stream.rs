//! A client and a server that exchange bytes whose content tells their position.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

/// The byte at a position of a stream.
fn byte(stream: u64, position: u64) -> u8 {
    let mut mixed = (position / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ stream;
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> (position % 8 * 8)) as u8
}

/// Writes `length` bytes of a stream.
pub(crate) fn write_all(socket: &TcpStream, stream: u64, length: u64) {
    let mut socket = socket;
    let mut position = 0;
    while position < length {
        let end = (position + 65_536).min(length);
        let chunk: Vec<u8> = (position..end).map(|position| byte(stream, position)).collect();
        socket.write_all(&chunk).unwrap_or_else(|error| panic!("writing at {position}: {error}"));
        position = end;
    }
}

/// Reads a stream to its end, which must come after `length` right bytes.
pub(crate) fn read_all(socket: &TcpStream, stream: u64, length: u64) {
    let mut socket = socket;
    let mut buffer = vec![0; 65_536];
    let mut position = 0;
    loop {
        let count = socket.read(&mut buffer).unwrap_or_else(|error| panic!("reading at {position}: {error}"));
        if count == 0 {
            break;
        }
        for got in &buffer[..count] {
            assert_eq!(*got, byte(stream, position), "byte {position} of stream {stream}");
            position += 1;
        }
    }
    assert_eq!(position, length, "stream {stream} ended early");
}

/// Both directions at once; who sends less ends its stream last. The deadline only ends a hang.
pub(crate) fn exchange(socket: &TcpStream, send: (u64, u64), receive: (u64, u64)) {
    let deadline = Some(std::time::Duration::from_secs(30));
    socket.set_read_timeout(deadline).unwrap();
    socket.set_write_timeout(deadline).unwrap();
    let finish = || socket.shutdown(Shutdown::Write).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            write_all(socket, send.0, send.1);
            if send.1 >= receive.1 {
                finish();
            }
        });
        read_all(socket, receive.0, receive.1);
    });
    if send.1 < receive.1 {
        finish();
    }
}

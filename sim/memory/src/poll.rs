//! Registrations of one worker.

use crate::machine::Machine;
use evergate_worker::host::Poll;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// Registrations of one worker: [`crate::Registrations`] of its machine.
#[derive(Debug)]
pub struct MemoryPoll(pub(crate) Rc<RefCell<Machine>>);

impl Poll for MemoryPoll {
    fn add(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.0.borrow_mut().registrations.insert(descriptor, token, true)
    }

    fn add_input(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.0.borrow_mut().registrations.insert(descriptor, token, false)
    }

    fn add_without_reads(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.0.borrow_mut().registrations.change(descriptor, token, false)
    }

    fn report_again(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.0.borrow_mut().registrations.change(descriptor, token, true)
    }

    fn remove(&self, descriptor: i32) -> io::Result<()> {
        self.0.borrow_mut().registrations.remove(descriptor);
        Ok(())
    }

    fn drain_wakes(&self) {
        self.0.borrow().waker.clear();
    }
}

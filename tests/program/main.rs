//! The whole program, driven as a user drives it, on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod bad_input;
mod commands;
mod faults;
mod files;
mod harness;
mod help;
mod outcomes;
mod places;
mod secrets;
mod ssh;

//! The whole program, driven as a user drives it, on this machine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod accounts;
mod bad_input;
mod commands;
mod faults;
mod files;
mod harness;
mod help;
#[path = "../common/images.rs"]
mod images;
mod once;
mod outcomes;
mod places;
mod sandbox;
mod secrets;
mod ssh;
mod tools;

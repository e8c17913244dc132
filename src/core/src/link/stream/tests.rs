//! A stream against a courier that the test plays itself.

mod calls;
mod fake;
mod life;
mod links;
mod visits;

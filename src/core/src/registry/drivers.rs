//! Which driver serves which scheme.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result, Step};
use crate::kernel::Driver;
use crate::target::Target;

/// The drivers of a registry, by scheme.
#[derive(Debug, Clone, Default)]
pub struct Drivers {
    by_scheme: HashMap<&'static str, Arc<dyn Driver>>,
}

impl Drivers {
    /// None yet.
    pub fn new() -> Self {
        Drivers::default()
    }

    /// Adds a driver for all its schemes.
    #[must_use]
    pub fn with(mut self, driver: impl Driver + 'static) -> Self {
        let driver: Arc<dyn Driver> = Arc::new(driver);
        for scheme in driver.schemes() {
            self.by_scheme.insert(scheme, Arc::clone(&driver));
        }
        self
    }

    /// The driver of a target, after it has checked the target.
    ///
    /// # Errors
    /// An unknown scheme, or what the driver says of the target.
    pub fn of(&self, target: &Target) -> Result<&Arc<dyn Driver>> {
        let Some(driver) = self.by_scheme.get(target.scheme()) else {
            let mut known: Vec<_> = self.by_scheme.keys().map(|s| format!("{s}:")).collect();
            known.sort();
            return Err(Error::new(
                ErrorKind::BadInput,
                format!("there is no driver for the target {target}"),
            )
            .at(Step::Parse)
            .with_hint(format!("this farcell knows: {}", known.join(", "))));
        };
        driver.check(target)?;
        Ok(driver)
    }

    /// Closes the connections that were left for later processes, of all drivers; returns how many.
    pub async fn close_kept(&self) -> usize {
        let mut closed = 0;
        for (scheme, driver) in &self.by_scheme {
            // One that serves several schemes is asked once.
            if driver.schemes().first() == Some(scheme) {
                closed += driver.close_kept().await;
            }
        }
        closed
    }
}

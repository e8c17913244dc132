//! Files of targets, by their drivers.

use std::path::Path;

use super::Registry;
use crate::error::Result;
use crate::target::Target;
use crate::transfer::{ProgressSink, TransferOptions, Transferred};

impl Registry {
    /// Puts the file `from` of this machine at `to` on a target. No kernel is needed for it.
    ///
    /// A relative `to` begins where a new kernel of the target would: in the working directory of this process for `local:`, else in the home
    /// directory, unless the options say otherwise. The same call goes on with a transfer that was cut off.
    ///
    /// # Errors
    /// What is wrong with either file or the target. The destination is then as it was.
    pub async fn put(
        &self,
        target: &Target,
        from: &Path,
        to: &str,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.cleaned(self.driver(target)?.put(target, from, to, options, progress).await)
    }

    /// Gets the file `from` of a target, and puts it at `to` on this machine, as [`Registry::put`] does the other way round.
    ///
    /// # Errors
    /// What is wrong with either file or the target. The destination is then as it was.
    pub async fn get(
        &self,
        target: &Target,
        from: &str,
        to: &Path,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.cleaned(self.driver(target)?.get(target, from, to, options, progress).await)
    }
}

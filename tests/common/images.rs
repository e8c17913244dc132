//! The project's images, for tests that need containers.

use farcell_testbed::{Engine, available};

/// The image's name; made by the first who asks. `None` where there is no engine.
pub(crate) fn built(engine: Engine, image: &'static str) -> Option<String> {
    available(engine.image((image, None)))
}

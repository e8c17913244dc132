//! What leads to a kernel: owner, session, target and profile.

use serde::{Deserialize, Serialize};

use crate::id;
use crate::target::Target;

/// The mark between an owner and one of its delegated children.
const CHILD: &str = "::child::";

/// A name under an owner on a target, with a profile. The same key always leads to the same kernel while that lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The stable identity that kernels belong to: a conversation, a user.
    pub owner: String,
    /// The session's name.
    pub session: String,
    /// Where it runs.
    pub target: Target,
    /// A named set of settings (Python, limits); kernels of different profiles are different kernels.
    pub profile: String,
}

impl Key {
    /// The key as a word for file names and messages, the same on every machine.
    pub fn digest(&self) -> String {
        id::digest(&[&self.owner, &self.session, self.target.as_str(), &self.profile], 16)
    }

    /// True for the kernels of a delegated child: the parent's cap never evicts them, only their own end does.
    pub fn is_pinned(&self) -> bool {
        self.owner.contains(CHILD)
    }

    /// True if it belongs to `owner`, or to one of its children.
    pub fn belongs_to(&self, owner: &str) -> bool {
        self.owner == owner || self.owner.strip_prefix(owner).is_some_and(|rest| rest.starts_with("::"))
    }
}

/// The owner of a delegated child: its own kernels, never its parent's.
pub fn child_owner(owner: &str, child: &str) -> String {
    format!("{owner}{CHILD}{child}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(owner: &str) -> Key {
        Key {
            owner: owner.into(),
            session: "s".into(),
            target: "local:".parse().unwrap(),
            profile: "default".into(),
        }
    }

    #[test]
    fn a_child_is_pinned_and_belongs_to_its_parent() {
        let child = key(&child_owner("ann", "7"));
        assert!(child.is_pinned() && child.belongs_to("ann"));
        assert!(!key("ann").is_pinned() && !key("anna").belongs_to("ann"));
        assert_ne!(child.digest(), key("ann").digest());
    }
}

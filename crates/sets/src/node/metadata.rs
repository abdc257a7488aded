//! The encoding of metadata in a node: a byte of flags, the owner, the extended attributes.
//!
//! An account is its number and its name, which is empty if it has none. Attributes stand behind
//! their number, each as name and value. Read [`put_metadata`] first.

use super::{Input, NodeError, put_bytes, put_number};
use crate::entry::EntryError;
use crate::metadata::{Account, Metadata, MetadataError, Ownership, Xattr};

/// Flag of metadata with an owner.
const OWNER: u8 = 1;
/// Flag of metadata with extended attributes.
const XATTRS: u8 = 2;

fn put_account(to: &mut Vec<u8>, account: &Account) {
    put_number(to, account.number().into());
    put_bytes(to, account.name().unwrap_or_default().as_bytes());
}

/// Adds the metadata of an entry.
pub(super) fn put_metadata(to: &mut Vec<u8>, metadata: &Metadata) {
    let (owner, xattrs) = (metadata.owner(), metadata.xattrs());
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    to.push(flag(owner.is_some(), OWNER) | flag(!xattrs.is_empty(), XATTRS));
    if let Some(owner) = owner {
        put_account(to, &owner.user);
        put_account(to, &owner.group);
    }
    if xattrs.is_empty() {
        return;
    }
    put_number(to, xattrs.len() as u64);
    for xattr in xattrs {
        put_bytes(to, xattr.name());
        put_bytes(to, xattr.value());
    }
}

fn wrong(error: MetadataError) -> NodeError {
    NodeError::Entry(EntryError::Metadata(error))
}

impl Input<'_> {
    fn account(&mut self) -> Result<Account, NodeError> {
        let number = u32::try_from(self.number()?).map_err(|_| NodeError::Number)?;
        let name = self.bytes()?;
        let bytes = name.len();
        let name = std::str::from_utf8(name).map_err(|_| wrong(MetadataError::AccountName { bytes }))?;
        Account::new(number, (!name.is_empty()).then_some(name)).map_err(wrong)
    }

    /// Reads the metadata of an entry.
    pub(super) fn metadata(&mut self) -> Result<Box<Metadata>, NodeError> {
        let flags = self.byte()?;
        if flags == 0 || flags > OWNER | XATTRS {
            return Err(NodeError::Kind { got: flags });
        }
        let owner = if flags & OWNER != 0 {
            Some(Ownership { user: self.account()?, group: self.account()? })
        } else {
            None
        };
        let mut xattrs = Vec::new();
        if flags & XATTRS != 0 {
            let items = self.number()?;
            if items == 0 {
                return Err(NodeError::Items { items });
            }
            // Each attribute takes bytes of the node, so a large number ends at its end.
            for _ in 0..items {
                xattrs.push(Xattr::new(self.bytes()?, self.bytes()?).map_err(wrong)?);
            }
        }
        let metadata = Metadata::new(owner, xattrs).map_err(wrong)?;
        Ok(metadata.expect("a flag says that there is some"))
    }
}

#[cfg(test)]
mod tests;

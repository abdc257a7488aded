//! Metadata of an entry beside its mode and time: owner, group and extended attributes. A transfer
//! takes it on request only.
//!
//! Only attributes of the `user.` namespace and POSIX access lists are metadata. Capabilities and
//! labels (`security.`, `trusted.`) have no value here.
//!
//! Leaves out: reading and setting metadata (the `disk` room). Read [`Metadata`] and
//! [`MetadataRules`] first.

use serde::{Deserialize, Serialize};

/// Maximum bytes of an extended attribute's name: Linux's `XATTR_NAME_MAX`.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of the names and values of an entry's extended attributes together. An entry then
/// still fits behind the cut of a node.
pub const XATTRS_BYTES_MAX: usize = 4_096;
/// Maximum bytes of the name of a user or a group. Usual systems have shorter ones.
pub const ACCOUNT_NAME_BYTES_MAX: usize = 255;
/// Names under which Linux has POSIX access lists.
pub const ACCESS_LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
/// Namespace of the attributes of users.
const USER_NAMESPACE: &[u8] = b"user.";

/// How a destination finds the owner of an entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerMapping {
    /// By name if the destination has the name, otherwise by number.
    Names,
    /// By number.
    Numbers,
}

/// Metadata that a transfer takes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetadataRules {
    /// Mapping of owners and groups; `None` to take no owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owners: Option<OwnerMapping>,
    /// Whether extended attributes and access lists are taken.
    pub xattrs: bool,
}

impl MetadataRules {
    /// Returns true if modes and times are all that is taken.
    pub fn is_none(&self) -> bool {
        self.owners.is_none() && !self.xattrs
    }
}

/// Why a value cannot be metadata of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetadataError {
    /// A name of a user or a group is empty, too long, or has a zero byte.
    AccountName {
        /// Its bytes.
        bytes: usize,
    },
    /// The number of a user or a group is the one that stands for none (`-1`).
    AccountNumber,
    /// The name of an extended attribute is too long, has a zero byte, or is of another namespace.
    XattrName,
    /// An attribute is not behind the attribute before it.
    XattrOrder,
    /// The extended attributes have more than [`XATTRS_BYTES_MAX`] bytes.
    XattrsTooLong {
        /// Their bytes, as far as they were read.
        bytes: usize,
    },
}

impl std::fmt::Display for MetadataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AccountName { bytes } => write!(
                f,
                "a name of a user or group of {bytes} bytes: must have 1 to {ACCOUNT_NAME_BYTES_MAX}, none zero"
            ),
            Self::AccountNumber => f.write_str("a user or group has the number -1, which stands for none"),
            Self::XattrName => f.write_str("an extended attribute is neither `user.` nor an access list"),
            Self::XattrOrder => f.write_str("extended attributes are not in ascending order"),
            Self::XattrsTooLong { bytes } => write!(
                f,
                "extended attributes of {bytes} bytes or more: must be at most {XATTRS_BYTES_MAX} together"
            ),
        }
    }
}
impl std::error::Error for MetadataError {}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    number: u32,
    name: Option<Box<str>>,
}

impl Account {
    /// The account with this number, and with its name if it has one.
    ///
    /// Errors: the number stands for no account; the name cannot be looked up.
    pub fn new(number: u32, name: Option<&str>) -> Result<Self, MetadataError> {
        if number == u32::MAX {
            return Err(MetadataError::AccountNumber);
        }
        match name {
            Some(name) if !Self::is_name(name) => Err(MetadataError::AccountName { bytes: name.len() }),
            name => Ok(Self { number, name: name.map(Into::into) }),
        }
    }

    /// Returns true if an account can have this name.
    pub fn is_name(name: &str) -> bool {
        (1..=ACCOUNT_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0')
    }

    /// Number at the source.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Name at the source.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Owner and group of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub user: Account,
    /// The group.
    pub group: Account,
}

/// Numbers of a user and a group at a destination.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct OwnerNumbers {
    /// The owner.
    pub user: u32,
    /// The group.
    pub group: u32,
}

/// Finds the numbers that a source's owner has at a destination.
pub type OwnersThere<'f> = &'f dyn Fn(&Ownership) -> OwnerNumbers;

impl Ownership {
    /// The numbers at the source.
    pub fn numbers(&self) -> OwnerNumbers {
        OwnerNumbers { user: self.user.number, group: self.group.number }
    }
}

/// An extended attribute, or an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Xattr {
    /// The attribute with this name and this value.
    ///
    /// Errors: the name is not one that a transfer takes.
    pub fn new(name: &[u8], value: &[u8]) -> Result<Self, MetadataError> {
        if !Self::is_taken(name) {
            return Err(MetadataError::XattrName);
        }
        Ok(Self { name: name.into(), value: value.into() })
    }

    /// Returns true for the name of an attribute that a transfer takes.
    pub fn is_taken(name: &[u8]) -> bool {
        let is_user = name.len() > USER_NAMESPACE.len() && name.starts_with(USER_NAMESPACE);
        (is_user && name.len() <= XATTR_NAME_BYTES_MAX && !name.contains(&0)) || is_access_list(name)
    }

    /// The name, with its namespace.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// Returns true for an access list, whose change can change the mode.
    pub fn is_access_list(&self) -> bool {
        is_access_list(&self.name)
    }
}

/// Returns true for the name of an access list.
pub fn is_access_list(name: &[u8]) -> bool {
    ACCESS_LISTS.iter().any(|list| list.as_bytes() == name)
}

/// Metadata of an entry, as far as its transfer takes some.
///
/// ```
/// use anabranch_sets::metadata::{Metadata, Xattr};
/// let xattrs = vec![Xattr::new(b"user.origin", b"paris")?];
/// assert!(Metadata::new(None, xattrs)?.is_some());
/// assert_eq!(Metadata::new(None, Vec::new())?, None);
/// assert!(Xattr::new(b"security.capability", b"").is_err());
/// # Ok::<(), anabranch_sets::metadata::MetadataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    owner: Option<Ownership>,
    xattrs: Box<[Xattr]>,
}

impl Metadata {
    /// The metadata with these attributes, sorted by name; `None` if there is nothing.
    ///
    /// Errors: the attributes are out of order, or too long together.
    pub fn new(owner: Option<Ownership>, xattrs: Vec<Xattr>) -> Result<Option<Box<Self>>, MetadataError> {
        if !xattrs.is_sorted_by(|before, after| before.name < after.name) {
            return Err(MetadataError::XattrOrder);
        }
        let bytes = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        if bytes > XATTRS_BYTES_MAX {
            return Err(MetadataError::XattrsTooLong { bytes });
        }
        let is_something = owner.is_some() || !xattrs.is_empty();
        Ok(is_something.then(|| Box::new(Self { owner, xattrs: xattrs.into() })))
    }

    /// Owner and group; `None` if the transfer takes no owners.
    pub fn owner(&self) -> Option<&Ownership> {
        self.owner.as_ref()
    }

    /// Returns true if a destination's metadata equals its source's. Owners of the source have the
    /// numbers `owners` there.
    pub(crate) fn is_equal_there(
        destination: Option<&Self>,
        source: Option<&Self>,
        owners: OwnersThere<'_>,
    ) -> bool {
        let xattrs = |metadata: Option<&Self>| metadata.map_or(Vec::new(), |found| found.xattrs.to_vec());
        let found = destination.and_then(Self::owner).map(Ownership::numbers);
        found == source.and_then(Self::owner).map(owners) && xattrs(destination) == xattrs(source)
    }

    /// The extended attributes, sorted by name.
    pub fn xattrs(&self) -> &[Xattr] {
        &self.xattrs
    }
}

//! Metadata of entries on disk: owners with their names, extended attributes, access lists.
//!
//! Each entry is reached by its descriptor, or by a name behind its directory's descriptor in
//! /proc, and no link is followed. The index of a tree has no metadata: a scan asks the system for
//! it, and a change of it changes the ctime, so that the file is read again.
//!
//! Leaves out: which metadata a transfer takes ([`MetadataRules`]). Read `Reader` and `Wanted`
//! first.

use super::{Problem, Stat, folder_around, stat_of};
use crate::folder::{Place, shown};
use anabranch_sets::metadata::{
    ACCESS_LISTS, Account, Metadata, MetadataError, MetadataRules, OwnerMapping, OwnerNumbers, Ownership,
    XATTRS_BYTES_MAX, Xattr,
};
use nix::unistd::{Gid, Group, Uid, User};
use rustix::fs::{AtFlags, Mode, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;

/// Bytes for the names of an entry's attributes, which most entries need at most.
const NAMES_BYTES: usize = 1 << 10;
/// Maximum bytes of the names of an entry's attributes on Linux.
const NAMES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of accounts that are remembered. A hostile manifest may name any number.
const ACCOUNTS_MAX: usize = 4_096;
/// Maximum number of names without an account here that are logged. A source may name any number.
const UNKNOWN_NAMES_MAX: usize = 100;
/// Maximum bytes of an attribute's value on Linux.
const VALUE_BYTES_MAX: usize = 64 << 10;
/// Permissions that let the owner of an entry change its attributes.
const OPEN_MODE: u32 = 0o600;
/// Permissions of the owner of an entry.
const OWNER_MODE: u32 = 0o700;
/// Name of the access list of a file.
const ACCESS_LIST: &[u8] = ACCESS_LISTS[0].as_bytes();
/// Account of the trial in [`check`]: any but this process's.
const OTHER_ACCOUNT: u32 = 1;

/// Converts the answer about an account. Some systems report an error for one that they lack.
fn found<T>(answer: nix::Result<Option<T>>) -> io::Result<Option<T>> {
    use nix::errno::Errno as E;
    match answer {
        Err(E::ENOENT | E::ESRCH | E::EBADF | E::EPERM) => Ok(None),
        other => other.map_err(io::Error::from),
    }
}

/// Names and numbers of this machine's users, or of its groups.
struct Accounts {
    /// Word for one of them in the log.
    kind: &'static str,
    name_of: fn(u32) -> io::Result<Option<String>>,
    number_of: fn(&str) -> io::Result<Option<u32>>,
    names: BTreeMap<u32, Option<String>>,
    numbers: BTreeMap<String, Option<u32>>,
    /// Number of names that were logged because they have no account here.
    unknown_names: usize,
}

impl Accounts {
    fn users() -> Self {
        Self {
            kind: "user",
            name_of: |number| Ok(found(User::from_uid(Uid::from_raw(number)))?.map(|user| user.name)),
            number_of: |name| Ok(found(User::from_name(name))?.map(|user| user.uid.as_raw())),
            names: BTreeMap::new(),
            numbers: BTreeMap::new(),
            unknown_names: 0,
        }
    }

    fn groups() -> Self {
        Self {
            kind: "group",
            name_of: |number| Ok(found(Group::from_gid(Gid::from_raw(number)))?.map(|group| group.name)),
            number_of: |name| Ok(found(Group::from_name(name))?.map(|group| group.gid.as_raw())),
            names: BTreeMap::new(),
            numbers: BTreeMap::new(),
            unknown_names: 0,
        }
    }

    /// The account with a number, with its name if `mapping` needs it.
    fn account(&mut self, number: u32, mapping: OwnerMapping) -> io::Result<Account> {
        let invalid = |error: MetadataError| io::Error::new(io::ErrorKind::InvalidData, error);
        if mapping == OwnerMapping::Numbers {
            return Account::new(number, None).map_err(invalid);
        }
        if self.names.len() >= ACCOUNTS_MAX {
            self.names.clear();
        }
        let name = match self.names.entry(number) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => new.insert((self.name_of)(number)?),
        };
        let name = name.as_deref().filter(|name| Account::is_name(name));
        Account::new(number, name).map_err(invalid)
    }

    /// Number of a source's account on this machine. The first names without an account here are
    /// logged.
    fn number(&mut self, account: &Account, mapping: OwnerMapping) -> io::Result<u32> {
        let Some(name) = account.name().filter(|_| mapping == OwnerMapping::Names) else {
            return Ok(account.number());
        };
        if self.numbers.len() >= ACCOUNTS_MAX {
            self.numbers.clear();
        }
        if !self.numbers.contains_key(name) {
            let found = (self.number_of)(name)?;
            self.numbers.insert(name.to_owned(), found);
            if found.is_none() && self.unknown_names < UNKNOWN_NAMES_MAX {
                self.unknown_names += 1;
                let (kind, number) = (self.kind, account.number());
                tracing::warn!("no {kind} {name:?} here: entries get its number at the source, {number}");
            }
        }
        Ok(self.numbers[name].unwrap_or(account.number()))
    }
}

/// Users and groups of this machine.
pub(super) struct Owners {
    users: RefCell<Accounts>,
    groups: RefCell<Accounts>,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self { users: RefCell::new(Accounts::users()), groups: RefCell::new(Accounts::groups()) }
    }

    fn owner(&self, stat: &Stat, mapping: OwnerMapping) -> io::Result<Ownership> {
        Ok(Ownership {
            user: self.users.borrow_mut().account(stat.user, mapping)?,
            group: self.groups.borrow_mut().account(stat.group, mapping)?,
        })
    }

    /// Numbers of a source's owner on this machine.
    ///
    /// Errors: the system's tables of accounts cannot be read.
    pub(super) fn numbers(&self, owner: &Ownership, mapping: OwnerMapping) -> io::Result<OwnerNumbers> {
        Ok(OwnerNumbers {
            user: self.users.borrow_mut().number(&owner.user, mapping)?,
            group: self.groups.borrow_mut().number(&owner.group, mapping)?,
        })
    }
}

/// Path of an entry's attributes. The last name is a link in /proc, or an entry of a directory.
enum XattrPath {
    /// Of an opened entry.
    Descriptor(Vec<u8>),
    /// Of a name in an opened directory.
    Name(Vec<u8>),
}

/// Path of an open descriptor in /proc. Through it an entry can be changed without a race, also if
/// the descriptor itself cannot change anything.
fn descriptor_path(descriptor: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd()).into_bytes()
}

impl XattrPath {
    fn of(descriptor: impl AsFd) -> Self {
        Self::Descriptor(descriptor_path(descriptor.as_fd()))
    }

    fn of_name(directory: impl AsFd, name: &OsStr) -> Self {
        let mut path = descriptor_path(directory.as_fd());
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        Self::Name(path)
    }

    fn list(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Descriptor(path) => rustix::fs::listxattr(path.as_slice(), names),
            Self::Name(path) => rustix::fs::llistxattr(path.as_slice(), names),
        }
    }

    fn value(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Descriptor(path) => rustix::fs::getxattr(path.as_slice(), name, value),
            Self::Name(path) => rustix::fs::lgetxattr(path.as_slice(), name, value),
        }
    }

    /// Names of the attributes that a transfer takes, sorted.
    fn names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = vec![0; NAMES_BYTES];
        let mut listed = self.list(&mut names);
        if listed == Err(Errno::RANGE) {
            names.resize(NAMES_BYTES_MAX, 0);
            listed = self.list(&mut names);
        }
        let length = match listed {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        let taken = names[..length].split(|byte| *byte == 0).filter(|name| Xattr::is_taken(name));
        let mut taken: Vec<Vec<u8>> = taken.map(<[u8]>::to_vec).collect();
        taken.sort_unstable();
        Ok(taken)
    }

    /// The attributes that a transfer takes, sorted by name.
    fn read(&self) -> Result<Vec<Xattr>, Problem> {
        let (mut xattrs, mut bytes, mut value) = (Vec::new(), 0, vec![0; XATTRS_BYTES_MAX]);
        let unreadable = |errno: Errno| Problem::Unreadable(errno.into());
        for name in self.names().map_err(unreadable)? {
            let too_long = |bytes| Problem::Metadata(MetadataError::XattrsTooLong { bytes });
            match self.value(&name, &mut value) {
                Ok(length) => {
                    bytes += name.len() + length;
                    if bytes > XATTRS_BYTES_MAX {
                        return Err(too_long(bytes));
                    }
                    xattrs.push(Xattr::new(&name, &value[..length]).map_err(Problem::Metadata)?);
                }
                // It was removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(Errno::RANGE) => return Err(too_long(XATTRS_BYTES_MAX + 1)),
                Err(errno) => return Err(unreadable(errno)),
            }
        }
        Ok(xattrs)
    }
}

/// Reads the metadata of a scan's entries.
pub(super) struct Reader {
    rules: MetadataRules,
    owners: Owners,
}

impl Reader {
    pub(super) fn new(rules: MetadataRules) -> Self {
        Self { rules, owners: Owners::new() }
    }

    /// Metadata of a file, or of another entry with attributes, by its name in a directory.
    pub(super) fn of_file(
        &self,
        directory: impl AsFd,
        name: &OsStr,
        stat: &Stat,
    ) -> Result<Option<Box<Metadata>>, Problem> {
        self.read(Some(&XattrPath::of_name(directory, name)), stat)
    }

    /// Metadata of an open directory.
    pub(super) fn of_directory(
        &self,
        directory: impl AsFd,
        stat: &Stat,
    ) -> Result<Option<Box<Metadata>>, Problem> {
        self.read(Some(&XattrPath::of(directory)), stat)
    }

    /// Metadata of a symbolic link, which has no attributes.
    pub(super) fn of_link(&self, stat: &Stat) -> Result<Option<Box<Metadata>>, Problem> {
        self.read(None, stat)
    }

    fn read(&self, path: Option<&XattrPath>, stat: &Stat) -> Result<Option<Box<Metadata>>, Problem> {
        let owner = self.rules.owners.map(|mapping| self.owners.owner(stat, mapping)).transpose();
        let owner = owner.map_err(|error| Problem::Unreadable(crate::folder::OpenError::Io(error)))?;
        let xattrs = match path.filter(|_| self.rules.xattrs) {
            Some(path) => path.read()?,
            None => Vec::new(),
        };
        Metadata::new(owner, xattrs).map_err(Problem::Metadata)
    }
}

/// Metadata that an entry gets.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    /// Owner and group; `None` to leave them.
    pub(super) owner: Option<OwnerNumbers>,
    /// All attributes, sorted by name; `None` to leave them.
    pub(super) xattrs: Option<Vec<Xattr>>,
}

impl Wanted {
    /// The metadata that an entry gets by the rules of a transfer. Anything beyond the rules in the
    /// source's metadata is ignored.
    ///
    /// Errors: see [`Owners::numbers`].
    pub(super) fn of(source: Option<&Metadata>, rules: MetadataRules, owners: &Owners) -> io::Result<Self> {
        let owner = match (rules.owners, source.and_then(Metadata::owner)) {
            (Some(mapping), Some(owner)) => Some(owners.numbers(owner, mapping)?),
            _ => None,
        };
        let xattrs = rules.xattrs.then(|| source.map_or(Vec::new(), |source| source.xattrs().to_vec()));
        Ok(Self { owner, xattrs })
    }

    /// Returns true if nothing is changed, whatever an entry has.
    pub(super) fn is_none(&self) -> bool {
        self.owner.is_none() && self.xattrs.is_none()
    }

    /// Returns true if an entry with these facts has another owner.
    pub(super) fn has_other_owner(&self, stat: &Stat) -> bool {
        self.owner.is_some_and(|owner| owner != OwnerNumbers { user: stat.user, group: stat.group })
    }

    /// Returns true if the entry `name` of a directory has other metadata.
    ///
    /// Errors: the system's.
    pub(super) fn differs_at(&self, directory: impl AsFd, name: &OsStr, stat: &Stat) -> Result<bool, Errno> {
        Ok(self.has_other_owner(stat) || self.has_other_xattrs(&XattrPath::of_name(directory, name))?)
    }

    /// Returns true if an open directory has other metadata.
    ///
    /// Errors: the system's.
    pub(super) fn differs(&self, directory: impl AsFd, stat: &Stat) -> Result<bool, Errno> {
        Ok(self.has_other_owner(stat) || self.has_other_xattrs(&XattrPath::of(directory))?)
    }

    fn has_other_xattrs(&self, path: &XattrPath) -> Result<bool, Errno> {
        let Some(wanted) = &self.xattrs else { return Ok(false) };
        match path.read() {
            Ok(found) => Ok(found != *wanted),
            // Another program gave it more than a transfer can.
            Err(Problem::Metadata(_)) => Ok(true),
            // To set the attributes shows the system's error, if there still is one.
            Err(_) => path.names().map(|_| true),
        }
    }

    /// Returns true if a file of a directory has another access list, or one that cannot be read.
    pub(super) fn has_other_access_list(&self, directory: impl AsFd, name: &OsStr) -> bool {
        let Some(wanted) = &self.xattrs else { return false };
        let list = wanted.iter().find(|xattr| xattr.name() == ACCESS_LIST);
        let mut value = vec![0; VALUE_BYTES_MAX];
        match XattrPath::of_name(directory, name).value(ACCESS_LIST, &mut value) {
            Ok(length) => list.is_none_or(|list| *list.value() != value[..length]),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => list.is_some(),
            Err(_) => true,
        }
    }

    /// Gives the copy of a file all attributes and access lists of the original, unless the
    /// transfer sets them. The mode comes later: it changes the mask of an access list.
    ///
    /// Errors: the system's.
    pub(super) fn keep_xattrs(&self, original: impl AsFd, copy: impl AsFd) -> Result<(), Errno> {
        if self.xattrs.is_some() {
            return Ok(());
        }
        let (original, path) = (XattrPath::of(original), descriptor_path(copy.as_fd()));
        let (names, path) = (original.names()?, path.as_slice());
        // A new file can inherit an access list from its directory.
        for name in XattrPath::of(&copy).names()?.iter().filter(|name| !names.contains(name)) {
            rustix::fs::removexattr(path, name.as_slice())?;
        }
        let mut value = vec![0; VALUE_BYTES_MAX];
        // Access lists are last in this order: they can forbid further attributes.
        for name in names.iter().rev() {
            match original.value(name, &mut value) {
                Ok(length) => {
                    rustix::fs::setxattr(path, name.as_slice(), &value[..length], XattrFlags::empty())?;
                }
                // It was removed meanwhile.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Gives the copy of a file the owner and the group of the original, unless the transfer sets
    /// them. Without the right to do so, the copy keeps its own.
    ///
    /// Errors: the system's, other than a missing right.
    pub(super) fn keep_owner(&self, original: &Stat, copy: impl AsFd) -> Result<(), Errno> {
        if self.owner.is_some() {
            return Ok(());
        }
        let (user, group) =
            (rustix::fs::Uid::from_raw(original.user), rustix::fs::Gid::from_raw(original.group));
        let give = |user| match rustix::fs::chownat(&copy, "", user, Some(group), AtFlags::EMPTY_PATH) {
            Err(Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            other => other.map(|()| true),
        };
        // Any user may give a file to a group that the user belongs to.
        if !give(Some(user))? {
            give(None)?;
        }
        Ok(())
    }

    /// Gives an entry its owner.
    ///
    /// Errors: the system's.
    pub(super) fn set_owner(&self, entry: impl AsFd) -> Result<(), Errno> {
        let Some(OwnerNumbers { user, group }) = self.owner else { return Ok(()) };
        let (user, group) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
        rustix::fs::chownat(entry, "", Some(user), Some(group), AtFlags::EMPTY_PATH)
    }

    /// Gives an open file or directory its owner, attributes, mode and time. The order matters: a
    /// new owner clears bits of the mode, a mode can forbid attributes, an access list changes the
    /// mode, and all of them come before the time of a directory. A group gets no rights before the
    /// entry has its attributes, which the system may refuse.
    ///
    /// Errors: the system's.
    pub(super) fn set(&self, entry: impl AsFd, mode: u32, times: &Timestamps) -> Result<(), Errno> {
        let path = descriptor_path(entry.as_fd());
        let (path, target) = (path.as_slice(), XattrPath::Descriptor(path.clone()));
        let set_mode = |mode| rustix::fs::chmod(path, Mode::from_raw_mode(mode));
        let found = Stat::of(&stat_of(&entry)?);
        if self.has_other_owner(&found) {
            set_mode(mode & found.mode & OWNER_MODE)?;
            if let Err(errno) = self.set_owner(&entry) {
                set_mode(found.mode)?;
                return Err(errno);
            }
        }
        match self.set_xattrs(&target, false) {
            Err(Errno::ACCESS | Errno::PERM) => {
                set_mode(mode & OWNER_MODE | OPEN_MODE)?;
                self.set_xattrs(&target, false)?;
            }
            other => other?,
        }
        set_mode(mode)?;
        self.set_xattrs(&target, true)?;
        rustix::fs::utimensat(rustix::fs::CWD, path, times, AtFlags::empty())
    }

    /// Sets and removes access lists, or all other attributes.
    fn set_xattrs(&self, target: &XattrPath, access_lists: bool) -> Result<(), Errno> {
        let (Some(wanted), XattrPath::Descriptor(path)) = (&self.xattrs, target) else { return Ok(()) };
        let path = path.as_slice();
        let is_wanted = |name: &[u8]| wanted.iter().any(|xattr| xattr.name() == name);
        for name in target.names()? {
            if anabranch_sets::metadata::is_access_list(&name) == access_lists && !is_wanted(&name) {
                match rustix::fs::removexattr(path, name.as_slice()) {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        let mut value = vec![0; XATTRS_BYTES_MAX];
        for xattr in wanted.iter().filter(|xattr| xattr.is_access_list() == access_lists) {
            let is_there = match target.value(xattr.name(), &mut value) {
                Ok(length) => value[..length] == *xattr.value(),
                Err(_) => false,
            };
            if !is_there {
                rustix::fs::setxattr(path, xattr.name(), xattr.value(), XattrFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Checks whether entries of a directory at a location can get metadata by these rules, with a file
/// without a name in the folder around it.
///
/// Errors: one line: this process may not give files to other users, or the file system has no
/// attributes of users.
pub fn check(place: &Place, rules: MetadataRules) -> io::Result<()> {
    if rules.is_none() {
        return Ok(());
    }
    let path = shown(place.path());
    let file = folder_around(place)?.nameless()?;
    if rules.xattrs {
        let set = rustix::fs::fsetxattr(&file, "user.anabranch", b"trial", XattrFlags::empty());
        set.map_err(|errno| {
            let reason = format!(
                "{path}: --xattrs: this file system takes no attributes of users ({errno}): leave it out"
            );
            io::Error::new(io::ErrorKind::Unsupported, reason)
        })?;
    }
    if rules.owners.is_some() {
        let other =
            Wanted { owner: Some(OwnerNumbers { user: OTHER_ACCOUNT, group: OTHER_ACCOUNT }), xattrs: None };
        let given = other
            .set_owner(&file)
            .and_then(|()| rustix::fs::fchmod(&file, Mode::from_raw_mode(OPEN_MODE | 0o040)));
        given.map_err(|errno| {
            let reason = format!(
                "{path}: --owners: the relay cannot give files to other users here ({errno}): run it as root, or \
                 with CAP_CHOWN, CAP_FOWNER and CAP_DAC_OVERRIDE, or leave --owners out"
            );
            io::Error::new(io::ErrorKind::PermissionDenied, reason)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Files by name below a folder, and never outside of it: every step starts from the folder's
//! descriptor.
//!
//! A name comes from another party (a controller, a client), and the folder may be writable by
//! users who must not gain this process's rights. So a path is resolved in one step that cannot
//! leave the folder (`openat2`), an opened file is checked before it is used, and later steps start
//! from descriptors. Source: openat2(2), `RESOLVE_BENEATH`.
//!
//! Leaves out: the contents of a partial file ([`crate::partial`]); files that are never given out
//! ([`secrets`]). Read [`Folder`] and [`Place`] first.

mod folding;
pub(crate) mod probes;
pub mod secrets;

use anabranch_pieces::name::{self, NameError};
use anabranch_units::text::printable;
use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Treatment of symbolic links below a folder.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Links {
    /// No link is followed.
    Refused,
    /// Links that stay inside the folder are followed.
    Inside,
}

/// A folder, held by its descriptor. It stays the same folder if its path is renamed or replaced.
#[derive(Debug)]
pub struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
    links: Links,
}

/// The one spelling of a file's name below a folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Returns true if the name lies in this folder or deeper. `None` stands for the whole served
    /// folder.
    pub fn is_below(&self, folder: &Option<String>) -> bool {
        let Some(folder) = folder else { return true };
        self.0.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

/// Reason why a file is not opened: one line without the file's name.
#[derive(Debug)]
pub enum OpenError {
    /// The file does not exist.
    NotFound,
    /// The path leads out of the folder.
    Outside,
    /// The path contains a link.
    Link,
    /// This process lacks the permission.
    Denied,
    /// The name is a folder.
    Folder,
    /// The name is a pipe, a socket or a device.
    Special,
    /// The file is a secret of this kind, which is never given out.
    Secret(String),
    /// Another error of the system.
    Io(io::Error),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFound => f.write_str("No such file or directory"),
            Self::Outside => f.write_str("outside the folder that is served"),
            Self::Link => f.write_str("its path has a symbolic link, and links are not followed"),
            Self::Denied => f.write_str("Permission denied"),
            Self::Folder => f.write_str("a folder, not a file"),
            Self::Special => f.write_str("a pipe, a socket or a device, not a plain file"),
            Self::Secret(what) => {
                write!(
                    f,
                    "{what}, which is neither read nor replaced for anybody: keep it outside the folder that is served"
                )
            }
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound,
            Errno::XDEV => Self::Outside,
            Errno::LOOP => Self::Link,
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::NXIO => Self::Special,
            other => Self::Io(other.into()),
        }
    }
}

impl OpenError {
    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NotFound => io::ErrorKind::NotFound,
            Self::Outside | Self::Link | Self::Denied | Self::Secret(_) => io::ErrorKind::PermissionDenied,
            Self::Folder | Self::Special => io::ErrorKind::InvalidInput,
            Self::Io(error) => error.kind(),
        }
    }

    /// Converts to an I/O error whose text begins with the file's name.
    pub fn at(&self, path: &Path) -> io::Error {
        let text = format!("{}: {self}", shown(path));
        match self {
            Self::Io(error) => reworded(error, text),
            _ => io::Error::new(self.kind(), text),
        }
    }
}

/// A path in a printable form.
pub fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Adds a file's name to an error.
pub fn at<T>(path: &Path, result: Result<T, impl Into<io::Error>>) -> io::Result<T> {
    result.map_err(|e| {
        let e = e.into();
        reworded(&e, format!("{}: {e}", shown(path)))
    })
}

/// A reworded system error with its number, which an `io::Error` with custom text cannot hold.
#[derive(Debug)]
struct Reworded {
    text: String,
    errno: Option<Errno>,
}

impl std::fmt::Display for Reworded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}
impl std::error::Error for Reworded {}

/// Rewords an error; its kind and the system's number stay ([`lacks_descriptors`]).
pub fn reworded(error: &io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), Reworded { text, errno: errno(error) })
}

fn errno(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error).or_else(|| error.get_ref()?.downcast_ref::<Reworded>()?.errno)
}

/// Returns true if a file could not be opened because too many files are open in this process or on
/// this machine. `io::ErrorKind` has no name for this error.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Name of a working file of `name`, in the same folder.
pub(crate) fn working_name(name: &[u8], ending: &str) -> String {
    let hash = &blake3::hash(name).to_hex()[..32];
    format!("{}{hash}.{ending}", name::RESERVED)
}

/// Removes a file; a missing one is no error.
pub(crate) fn remove(folder: &OwnedFd, name: impl rustix::path::Arg) -> Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Renames a file in its folder to a name that is free; `EXIST` if the name is taken.
pub(crate) fn rename_new(folder: &OwnedFd, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    move_new((folder, from), (folder, to))
}

/// Moves a file to a name that is free, possibly in another folder; `EXIST` if the name is taken.
pub(crate) fn move_new(
    (from_folder, from): (&OwnedFd, &OsStr),
    (to_folder, to): (&OwnedFd, &OsStr),
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from_folder, from, to_folder, to, RenameFlags::NOREPLACE) {
        // The file system or the kernel lacks this flag.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match rustix::fs::statat(to_folder, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => rustix::fs::renameat(from_folder, from, to_folder, to),
                Err(errno) => Err(errno),
            }
        }
        other => other,
    }
}

impl Folder {
    /// Opens the folder at `path`. Links in `path` are followed.
    ///
    /// Errors: the system's.
    pub fn open(path: &Path, links: Links) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { descriptor, path: path.to_owned(), links })
    }

    /// The folder with this descriptor; `path` is for messages.
    pub(crate) fn of_descriptor(descriptor: OwnedFd, path: PathBuf, links: Links) -> Self {
        Self { descriptor, path, links }
    }

    /// Path of the folder when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same folder, whose path begins with `path` in messages.
    #[must_use]
    pub fn shown_as(self, path: PathBuf) -> Self {
        Self { path, ..self }
    }

    /// Path of a file in the folder, for messages.
    pub fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(&name.0)
    }

    /// Converts `text` to a file's name: a relative path below the folder, or an absolute path that
    /// begins with the folder's path.
    ///
    /// Errors: the text cannot be a file's name, or the file lies outside the folder.
    pub fn name(&self, text: &str) -> io::Result<Name> {
        let invalid = |e: NameError| io::Error::new(io::ErrorKind::InvalidInput, e);
        let normal = name::normal(text).map_err(invalid)?;
        if !normal.starts_with('/') {
            return Ok(Name(normal));
        }
        let below = Path::new(&normal).strip_prefix(&self.path).ok().and_then(Path::to_str);
        below.filter(|below| !below.is_empty()).map(|below| Name(below.to_owned())).ok_or_else(|| {
            let (text, folder) = (printable(text), shown(&self.path));
            let reason = format!("`{text}`: outside the folder that this site serves ({folder}); see --dir");
            io::Error::new(io::ErrorKind::PermissionDenied, reason)
        })
    }

    fn resolve(&self) -> ResolveFlags {
        let links =
            if self.links == Links::Refused { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
        ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | links
    }

    /// Opens a plain file of any name for reading, unless it is a secret ([`secrets`]).
    ///
    /// The call never blocks: pipes, sockets and devices are refused.
    /// Errors: [`OpenError`].
    pub fn file_at(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        let file = self.any_file_at(path.as_ref())?;
        match secrets::read_through(self, path.as_ref(), &file) {
            Some(what) => Err(OpenError::Secret(what)),
            None => Ok(file),
        }
    }

    fn any_file_at(&self, path: &Path) -> Result<File, OpenError> {
        // The kind is checked before the file is opened, because opening a device can have effects.
        let found = rustix::fs::openat2(
            &self.descriptor,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            self.resolve(),
        )?;
        plain(&found)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(&self.descriptor, path, flags, Mode::empty(), self.resolve())?;
        plain(&file)?;
        Ok(file.into())
    }

    /// Opens a plain file for reading.
    ///
    /// Errors: [`OpenError`], with the file's name.
    pub fn file(&self, name: &Name) -> io::Result<File> {
        self.file_at(name.0.as_str()).map_err(|e| e.at(&self.path_of(name)))
    }

    /// Opens a folder below this one for reading; an empty path is this one.
    ///
    /// Errors: the system's.
    pub fn open_folder(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.descriptor, path, flags, Mode::empty(), self.resolve())
    }

    /// Finds the location of the present or future file `name`; with `make`, creates the folders of
    /// its path.
    ///
    /// Errors: the system's, with the name of the folder; a link in the path; a secret of ours at
    /// the location.
    pub fn place(&self, name: &Name, make: bool) -> io::Result<Place> {
        let path = Path::new(&name.0);
        let parent = path.parent().unwrap_or(Path::new(""));
        let told = |errno: Errno| OpenError::from(errno).at(&self.path.join(parent));
        let folder = match self.open_folder(parent) {
            Err(Errno::NOENT) if make => {
                self.make_folders(parent, Mode::from_raw_mode(0o777)).map_err(told)?;
                self.open_folder(parent).map_err(told)?
            }
            Err(Errno::NOTDIR) => {
                let reason =
                    format!("{}: not a folder, so no file can be in it", shown(&self.path.join(parent)));
                return Err(io::Error::new(io::ErrorKind::NotADirectory, reason));
            }
            other => other.map_err(told)?,
        };
        if let Some(what) = secrets::replaced_at(self, path) {
            return Err(OpenError::Secret(what).at(&self.path_of(name)));
        }
        let file = path.file_name().unwrap_or_default().to_owned();
        Ok(Place { folder: Arc::new(folder), name: file, path: self.path_of(name) })
    }

    /// Opens the folder `name` for reading; creates it, and the folders of its path, if missing.
    ///
    /// Errors: the system's, with the name of the folder; a link in the path.
    pub fn make_folder(&self, name: &Name) -> io::Result<OwnedFd> {
        let path = Path::new(&name.0);
        let told = |errno: Errno| OpenError::from(errno).at(&self.path.join(path));
        match self.open_folder(path) {
            Err(Errno::NOENT) => {
                self.make_folders(path, Mode::from_raw_mode(0o777)).map_err(told)?;
                self.open_folder(path).map_err(told)
            }
            other => other.map_err(told),
        }
    }

    /// Path of a working file beside `name`, by the folder's descriptor. The folder must exist.
    ///
    /// Errors: the system's; the working file is a link.
    pub fn beside(&self, name: &Name, ending: &str) -> io::Result<PathBuf> {
        self.place(name, true)?.working_path(ending)
    }

    /// Makes the folders of a path that are missing.
    pub(crate) fn make_folders(&self, path: &Path, mode: Mode) -> Result<(), Errno> {
        let mut made = PathBuf::new();
        for component in path.components() {
            let above = self.open_folder(&made)?;
            match rustix::fs::mkdirat(&above, component.as_os_str(), mode) {
                Ok(()) | Err(Errno::EXIST) => made.push(component),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Checks whether a file `name` could be written below the folder, as far as possible without
    /// writing.
    ///
    /// Errors: one line: a folder has that name, the path holds a link or another kind of file, a
    /// folder is not writable.
    pub fn check(&self, name: &Name) -> io::Result<()> {
        match self.place(name, false) {
            Ok(place) => place.check(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                // Missing folders will be created in the nearest folder that exists.
                let parents = Path::new(&name.0).ancestors().skip(2);
                for parent in parents {
                    match self.open_folder(parent) {
                        Ok(folder) => return writable(&folder, &self.path.join(parent)),
                        Err(Errno::NOENT) => {}
                        Err(errno) => return Err(OpenError::from(errno).at(&self.path.join(parent))),
                    }
                }
                Err(e)
            }
            Err(e) => Err(e),
        }
    }

    /// Calls `visit` with the path of each folder that has names with `prefix`, its descriptor and
    /// these names. The search covers this folder (the empty path) and all folders below it. Links
    /// are not followed, and unreadable folders are skipped.
    ///
    /// Errors: the folder itself cannot be read.
    pub fn each_folder(
        &self,
        prefix: &str,
        mut visit: impl FnMut(&Path, OwnedFd, Vec<OsString>),
    ) -> io::Result<()> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(path) = waiting.pop() {
            let mut names = Vec::new();
            let read = self.each_name(&path, |name, kind| {
                if kind == FileType::Directory {
                    waiting.push(path.join(name));
                } else if name.as_bytes().starts_with(prefix.as_bytes()) {
                    names.push(name.to_owned());
                }
                true
            });
            match read {
                Ok(folder) if !names.is_empty() => visit(&path, folder, names),
                Err(errno) if path.as_os_str().is_empty() => return at(&self.path, Err(errno)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Calls `visit` with each name in the folder `path`, and with the kind of the entry, until
    /// `visit` returns false.
    ///
    /// Errors: the folder cannot be opened.
    fn each_name(
        &self,
        path: &Path,
        mut visit: impl FnMut(&OsStr, FileType) -> bool,
    ) -> Result<OwnedFd, Errno> {
        let folder = self.open_folder(path)?;
        for entry in rustix::fs::Dir::read_from(&folder)?.flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let kind = match entry.file_type() {
                // Some file systems do not report the type.
                FileType::Unknown => rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode)),
                known => known,
            };
            if name != "." && name != ".." && !visit(name, kind) {
                break;
            }
        }
        Ok(folder)
    }

    /// Creates a nameless file in the folder, which only this process can use.
    ///
    /// Errors: the system's.
    pub fn nameless(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE;
        let mode = Mode::RUSR | Mode::WUSR;
        match rustix::fs::openat(&self.descriptor, ".", flags, mode) {
            Ok(file) => return Ok(file.into()),
            // Some file systems have no nameless files. There, a new file's name is removed at
            // once.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        let name = format!("{}{:016x}.spool", name::RESERVED, anabranch_net::random()?);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.descriptor, name.as_str(), flags, mode)?;
        rustix::fs::unlinkat(&self.descriptor, name.as_str(), AtFlags::empty())?;
        Ok(file.into())
    }
}

fn plain(file: impl AsFd) -> Result<(), OpenError> {
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(OpenError::Folder),
        FileType::Symlink => Err(OpenError::Link),
        _ => Err(OpenError::Special),
    }
}

fn writable(folder: &OwnedFd, path: &Path) -> io::Result<()> {
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    at(path, rustix::fs::accessat(folder, ".", wanted, AtFlags::EACCESS).map_err(io::Error::from))
}

/// Location of a present or future file: its folder's descriptor and its name there.
#[derive(Clone, Debug)]
pub struct Place {
    folder: Arc<OwnedFd>,
    name: OsString,
    path: PathBuf,
}

impl Place {
    /// Location of a path that the user named: links among its folders are followed, and missing
    /// folders are created. The file itself is never reached by a link.
    ///
    /// Errors: the system's, with the name of the folder; the path names no file.
    pub fn of(path: &Path) -> io::Result<Self> {
        Self::beside(path, None)
    }

    /// Does the same as [`Place::of`]; if `beside` is a location in the same folder, its descriptor
    /// is used without another lookup.
    ///
    /// Errors: see [`Place::of`].
    pub fn beside(path: &Path, beside: Option<&Self>) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let Some(name) = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")) else {
            return Err(invalid(format!("{}: this names no file", shown(path))));
        };
        if name::is_reserved(name.as_bytes()) {
            let error = NameError::Reserved { name: path.to_string_lossy().into_owned() };
            return Err(invalid(error.to_string()));
        }
        let folder = match beside {
            Some(other) if other.path.parent() == path.parent() => Arc::clone(&other.folder),
            _ => {
                let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                at(parent, std::fs::create_dir_all(parent))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                Arc::new(at(parent, rustix::fs::open(parent, flags, Mode::empty()))?)
            }
        };
        Ok(Self { folder, name: name.to_owned(), path: path.to_owned() })
    }

    /// The folder.
    pub fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// The name in the folder.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Name of a working file beside the file, with an ending that no partial file has.
    pub fn working_name(&self, ending: &str) -> String {
        working_name(self.name.as_bytes(), ending)
    }

    /// Path of a working file beside the file.
    ///
    /// Errors: the working file is a link, or no plain file.
    pub fn working_path(&self, ending: &str) -> io::Result<PathBuf> {
        let working = self.working_name(ending);
        let found = rustix::fs::statat(&self.folder, working.as_str(), AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) != FileType::RegularFile) {
            let path = shown(&self.path);
            let reason = format!("{path}: its working file {working} is no plain file: remove it");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        Ok(self.path.with_file_name(working))
    }

    /// Path at the time of the lookup, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The finished file, if it exists.
    ///
    /// Errors: the entry of this name is no plain file, or cannot be read.
    pub fn finished(&self) -> io::Result<Option<File>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(&self.folder, &*self.name, flags, Mode::empty());
        let looked = || -> Result<Option<File>, OpenError> {
            match open(flags) {
                Ok(found) => plain(&found)?,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            let flags =
                OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match open(flags) {
                Ok(file) => {
                    plain(&file)?;
                    Ok(Some(file.into()))
                }
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno.into()),
            }
        };
        looked().map_err(|e| e.at(&self.path))
    }

    /// Checks whether a file could be written at the location, as far as possible without writing.
    ///
    /// Errors: one line: a folder has that name, the path holds a link or another kind of file, the
    /// folder is not writable.
    pub fn check(&self) -> io::Result<()> {
        writable(&self.folder, self.path.parent().unwrap_or(Path::new(".")))?;
        let invalid = |why: &str| {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", shown(&self.path))))
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = match rustix::fs::statx(&self.folder, &*self.name, flags, StatxFlags::TYPE) {
            Err(Errno::NOENT) => return Ok(()),
            other => at(&self.path, other)?,
        };
        match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::RegularFile => {}
            FileType::Directory => {
                return invalid("a folder has this name: name the file too, as in FOLDER/FILE");
            }
            FileType::Symlink => {
                return invalid(
                    "a symbolic link has this name, and links are not followed: remove it, or use another name",
                );
            }
            _ => return invalid("a pipe, a socket or a device has this name: use another one"),
        }
        if found.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) {
            return invalid("this file may not be replaced (chattr +i or +a)");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Folders of the machine, with links and other traps in them.

use super::*;
use std::os::unix::fs::symlink;

/// A folder `served` with a file `a/b` in it, beside a file `secret` and a folder `outside`.
fn world(links: Links) -> (tempfile::TempDir, Folder) {
    let all = tempfile::tempdir().expect("a temporary folder");
    let served = all.path().join("served");
    std::fs::create_dir_all(served.join("a")).expect("it can be made");
    std::fs::create_dir(all.path().join("outside")).expect("it can be made");
    std::fs::write(served.join("a/b"), b"inside").expect("it can be written");
    std::fs::write(all.path().join("secret"), b"outside").expect("it can be written");
    let folder = Folder::open(&served, links).expect("it is there");
    (all, folder)
}

fn told(result: io::Result<impl Sized>) -> String {
    let said = result.err().expect("it is refused").to_string();
    assert!(!said.contains('\n'), "{said}");
    said
}

#[test]
fn no_name_leads_out_of_the_folder() {
    let (all, folder) = world(Links::Refused);
    let served = all.path().join("served");
    let name = |text: &str| folder.name(text).map(|name| name.0);
    assert_eq!(name("a/b").expect("inside"), "a/b");
    assert_eq!(name("./a//b").expect("inside"), "a/b");
    assert_eq!(name(served.join("a/b").to_str().expect("plain")).expect("inside"), "a/b");
    for bad in ["../secret", "/etc/passwd", "a/../../secret", "", ".", "/", "a/", ".anabranch-0.partial"] {
        assert!(name(bad).is_err(), "{bad}");
    }
    for bad in ["..", "x/../../y", ""] {
        assert!(name(served.join(bad).to_str().expect("plain")).is_err(), "{bad}");
    }
}

/// #17: a link in the source's folder sent the file that it points to, wherever that was.
#[test]
fn links_out_of_the_folder_are_not_followed() {
    let (all, folder) = world(Links::Refused);
    let served = all.path().join("served");
    symlink("../secret", served.join("leak")).expect("it can be made");
    symlink("a/b", served.join("link")).expect("it can be made");
    symlink("../outside", served.join("way")).expect("it can be made");
    symlink("/proc/self/root", served.join("magic")).expect("it can be made");
    for bad in ["leak", "link", "way/x", "magic/etc/hostname"] {
        let name = folder.name(bad).expect("a name like any other");
        assert!(told(folder.file(&name)).contains("link"), "{bad}");
    }
    for bad in ["way/x", "magic/x"] {
        let name = folder.name(bad).expect("a name like any other");
        assert!(told(folder.place(&name, true)).contains("link"), "{bad}");
        assert!(told(folder.check(&name)).contains("link"), "{bad}");
    }
    assert_eq!(std::fs::read_dir(all.path().join("outside")).expect("listed").count(), 0);
    let (_all, folder) = world(Links::Inside);
    symlink("a/b", folder.path().join("link")).expect("it can be made");
    symlink("../secret", folder.path().join("leak")).expect("it can be made");
    assert!(folder.file_at("link").is_ok());
    assert!(matches!(folder.file_at("leak"), Err(OpenError::Outside)));
}

/// #17: a pipe as source held a thread, and with it the daemon, for ever.
#[test]
fn pipes_sockets_and_devices_are_refused_without_blocking() {
    let (all, folder) = world(Links::Refused);
    let served = all.path().join("served");
    let pipe = std::process::Command::new("mkfifo").arg(served.join("pipe")).status();
    assert!(pipe.expect("mkfifo is there").success());
    let _socket = std::os::unix::net::UnixListener::bind(served.join("socket")).expect("a socket");
    for (bad, said) in [("pipe", "a pipe"), ("socket", "a pipe, a socket"), ("a", "a folder")] {
        let name = folder.name(bad).expect("a name like any other");
        assert!(told(folder.file(&name)).contains(said), "{bad}");
        assert!(folder.check(&name).is_err(), "{bad}");
    }
    assert!(matches!(
        Folder::open(Path::new("/dev"), Links::Inside).expect("there").file_at("null"),
        Err(OpenError::Special)
    ));
}

#[test]
fn folders_are_made_below_the_folder_only_when_asked() {
    let (all, folder) = world(Links::Refused);
    let name = folder.name("new/er/x").expect("good");
    assert_eq!(folder.place(&name, false).expect_err("not there").kind(), io::ErrorKind::NotFound);
    folder.check(&name).expect("it could be made");
    assert!(!all.path().join("served/new").exists());
    folder.place(&name, true).expect("made");
    assert!(all.path().join("served/new/er").is_dir());
    let name = folder.name("a/b/x").expect("good");
    assert!(told(folder.place(&name, true)).contains("not a folder"));
    assert!(told(folder.check(&name)).contains("not a folder"));
}

#[test]
fn entry_that_blocks_a_file_is_found_before_transfer() {
    let (all, folder) = world(Links::Refused);
    let served = all.path().join("served");
    symlink("a/b", served.join("link")).expect("it can be made");
    let check = |text: &str| folder.check(&folder.name(text).expect("good"));
    check("a/b").expect("a file may be there");
    check("a/new").expect("or nothing");
    assert!(told(check("a")).contains("a folder has this name"));
    assert!(told(check("link")).contains("symbolic link"));
    assert!(told(Place::of(&served.join("a/..")).map(drop)).contains("no file"));
    assert!(told(Place::of(&served.join(".anabranch-x")).map(drop)).contains("kept for files"));
}

#[test]
fn nameless_file_leaves_no_entry() {
    let (all, folder) = world(Links::Refused);
    let file = folder.nameless().expect("the disk is there");
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0).expect("it can be written");
    assert_eq!(std::fs::read_dir(all.path().join("served")).expect("listed").count(), 1);
}

/// #18: the words "Too many open files" had to be looked for in the text, because an error that
/// names its file had lost its number.
#[test]
fn reworded_error_still_reports_missing_descriptors() {
    let path = Path::new("a/b");
    for errno in [Errno::MFILE, Errno::NFILE] {
        let error = at(path, Err::<(), _>(errno)).expect_err("it was one");
        assert!(error.to_string().starts_with("a/b: Too many open files"), "{error}");
        let twice = reworded(&error, format!("{error}, again"));
        for error in [io::Error::from(errno), OpenError::from(errno).at(path), error, twice] {
            assert!(lacks_descriptors(&error), "{error}");
        }
    }
    let words = io::Error::other("a/b: Too many open files (os error 24)");
    for error in
        [at(path, Err::<(), _>(Errno::NOSPC)).expect_err("it was one"), OpenError::Link.at(path), words]
    {
        assert!(!lacks_descriptors(&error), "{error}");
    }
}

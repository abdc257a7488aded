//! Tests of valid and forged signatures.

use super::*;
use anabranch_testing::replay;
use proptest::prelude::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
const END: u64 = 1_767_225_600;

fn secrets(text: &str) -> SigningSecrets {
    SigningSecrets::read(text).expect("good secrets")
}

fn grant(path: &str) -> Grant {
    Grant { path: path.to_owned(), expires_unix_s: END, clients: None }
}

fn viewer() -> IpAddr {
    IpAddr::from([192, 0, 2, 7])
}

#[test]
fn signature_covers_all_paths_below_its_path() {
    let secrets = secrets(SECRET);
    let check = |target: &str| secrets.check(target, END - 1, viewer()).map(str::to_owned);
    for path in ["/news", "/news/"] {
        let signed = secrets.sign(&grant(path)).expect("a path");
        for below in
            ["/news/index.m3u8", "/news/main/index.m3u8?_HLS_msn=7&_HLS_part=2", "/news", "/news/1.m4s"]
        {
            assert_eq!(check(&format!("{signed}{below}")), Ok(below.to_owned()));
        }
        for other in ["/sports/index.m3u8", "/newsroom/index.m3u8", "/new", "/", "//news/x", "/x/news/y"] {
            assert_eq!(check(&format!("{signed}{other}")), Err(SignatureError::Bad), "{other}");
        }
    }
    let all = secrets.sign(&grant("/")).expect("a path");
    assert_eq!(check(&format!("{all}/any/thing")), Ok("/any/thing".to_owned()));
    assert_eq!(check("/news/index.m3u8"), Err(SignatureError::Missing));
}

#[test]
fn signature_expires_at_its_end_time() {
    let secrets = secrets(SECRET);
    let target = secrets.sign(&grant("/news")).expect("a path") + "/news/index.m3u8";
    assert!(secrets.check(&target, END - 1, viewer()).is_ok());
    assert_eq!(secrets.check(&target, END, viewer()), Err(SignatureError::Expired(END)));
    let longer = target.replace(&END.to_string(), &(END + 1).to_string());
    assert_eq!(secrets.check(&longer, END, viewer()), Err(SignatureError::Bad));
}

#[test]
fn signature_is_valid_for_its_client_addresses_only() {
    let secrets = secrets(SECRET);
    for (prefix, inside, outside) in [
        ("192.0.2.0/24", "192.0.2.7", "192.0.3.7"),
        ("2001:db8::/32", "2001:db8::7", "2001:db9::7"),
        ("192.0.2.0/24", "::ffff:192.0.2.7", "::ffff:192.0.3.7"),
    ] {
        let clients = Some(prefix.parse().expect("a prefix"));
        let signed = secrets.sign(&Grant { clients, ..grant("/news") }).expect("a path");
        let check = |from: &str| {
            let target = format!("{signed}/news/1.m4s");
            secrets.check(&target, 0, from.parse().expect("an address")).map(str::to_owned)
        };
        assert_eq!(check(inside), Ok("/news/1.m4s".to_owned()));
        assert_eq!(check(outside), Err(SignatureError::OtherClient(outside.parse().expect("an address"))));
    }
}

#[test]
fn both_secrets_verify_and_the_first_secret_signs() {
    let (old, both, new) =
        (secrets(SECRET), secrets(&format!("# rotation\n{OTHER}\n\n{SECRET}\n")), secrets(OTHER));
    let signed = |secrets: &SigningSecrets| secrets.sign(&grant("/news")).expect("a path") + "/news/x";
    let is_good = |secrets: &SigningSecrets, target: &str| secrets.check(target, 0, viewer()).is_ok();
    assert!(is_good(&both, &signed(&old)) && is_good(&both, &signed(&new)));
    assert!(is_good(&new, &signed(&both)) && !is_good(&old, &signed(&both)));
    assert!(old.replace("short").is_err());
    assert!(is_good(&old, &signed(&old)));
    old.replace(OTHER).expect("a secret");
    assert!(is_good(&new, &signed(&old)) && !is_good(&old, &signed(&secrets(SECRET))));
}

#[test]
fn invalid_secret_files_and_paths_are_refused() {
    let refused = |text: &str| SigningSecrets::read(text).expect_err("a bad file");
    assert_eq!(refused(&SECRET[1..]), SecretFileError::BadSecret(1, 31));
    assert_eq!(refused(&format!("\n{SECRET} x")), SecretFileError::BadSecret(2, 34));
    assert!(SigningSecrets::read(&"x".repeat(256)).is_ok());
    assert_eq!(refused(&"x".repeat(257)), SecretFileError::BadSecret(1, 257));
    assert_eq!(refused(&format!("{SECRET}\n{OTHER}\n{SECRET}")), SecretFileError::TooMany);
    assert_eq!(refused("# none\n"), SecretFileError::Empty);
    let secrets = secrets(SECRET);
    for path in ["news", "", "/news//x", "/~1", "/news?x", "/a/b/c/d/e/f/g/h/i", "/né"] {
        let is_refused = secrets.sign(&grant(path)).is_err();
        assert_eq!(is_refused, !path.is_empty(), "{path}");
    }
    assert!(secrets.sign(&grant("/a/b/c/d/e/f/g/h")).is_ok());
}

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(replay("live_signature", exercise) >= 1);
}

proptest! {
    #[test]
    fn changed_targets_are_refused(at in 0_usize..200, byte in 0x21_u8..0x7f) {
        let secrets = secrets(SECRET);
        let clients = Some("192.0.2.0/24".parse().expect("a prefix"));
        let signed = secrets.sign(&Grant { clients, ..grant("/news") }).expect("a path");
        let mut target = format!("{signed}/news/").into_bytes();
        let at = at % target.len();
        prop_assume!(target[at] != byte);
        target[at] = byte;
        let target = String::from_utf8(target).expect("ASCII");
        let checked = secrets.check(&target, 0, viewer());
        // The path below the covered path may change, because it is not signed.
        let is_free = target.starts_with(&format!("{signed}/news")) && matches!(byte, b'?');
        prop_assert!(checked.is_err() || is_free, "{}", target);
    }

    #[test]
    fn random_targets_do_not_panic(target in "/?~?[0-9~_./:a-zA-Z-]{0,80}") {
        exercise(target.as_bytes());
    }
}

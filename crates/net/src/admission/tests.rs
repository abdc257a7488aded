//! Tests with listeners on loopback, and callers from several loopback addresses.

use super::*;
use crate::identity::Identity;
use crate::keys::{Role, SetRequest, make_set};
use crate::party::examples::HAUL;
use crate::tls::{CredentialFiles, Credentials};
use std::path::Path;
use tokio::net::TcpSocket;

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

fn identity() -> Identity {
    let request = SetRequest {
        system: HAUL,
        sites: vec!["a".into()],
        operators: vec![],
        controller_hosts: vec![],
        valid_days: 2,
    };
    let set = make_set(&request).expect("a good request");
    let own = set.files.iter().find(|f| f.stem == Path::new("sites/a")).expect("it was asked for");
    let [ca, certificate, key] = ["ca.pem", "a.pem", "a.key"].map(Into::into);
    let files = CredentialFiles { ca, certificate, key, holder: None };
    let (ca, pem, key) = (&set.files[0].certificate_pem, &own.certificate_pem, &own.key_pem);
    let credentials =
        Credentials::from_pem(ca.as_bytes(), pem.as_bytes(), key.as_bytes(), &files, Default::default());
    Identity::new(&credentials.expect("a good set")).expect("a good set")
}

struct TestListener {
    identity: Identity,
    admission: Admission,
    at: SocketAddr,
    /// Reason for the end of each connection; "welcome" after a successful greeting.
    ends: tokio::sync::mpsc::UnboundedReceiver<String>,
}

impl TestListener {
    /// Accepts connections for ever; a greeting is one byte.
    fn open(limits: AdmissionLimits) -> Self {
        let listener = crate::socket::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
        let at = listener.local_addr().expect("it is bound");
        let (identity, admission) = (identity(), Admission::new(limits));
        let (tell, ends) = tokio::sync::mpsc::unbounded_channel();
        let door = (identity.clone(), admission.clone());
        tokio::spawn(async move {
            loop {
                let arrival = door.1.accept(&listener).await;
                let (tls, tell) = (door.0.server_config(), tell.clone());
                tokio::spawn(async move {
                    let greeted = async {
                        let (mut stream, peer, half_open) = arrival.identify(tls).await?;
                        half_open.within(stream.read_u8()).await?;
                        drop(half_open);
                        stream.write_u8(1).await?;
                        stream.flush().await?;
                        io::Result::Ok(peer.name)
                    };
                    let end = greeted.await.map_or_else(|e| e.to_string(), |_| "welcome".into());
                    let _ = tell.send(end);
                });
            }
        });
        Self { identity, admission, at, ends }
    }

    /// A connection from 127.0.0.`host`.
    async fn connect(&self, host: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, host], 0).into()).expect("all of 127.0.0.0/8 is loopback");
        socket.connect(self.at).await.expect("it listens")
    }

    /// Performs the TLS handshake over `tcp`, and reads the greeting.
    async fn greet(&self, tcp: TcpStream) -> io::Result<u8> {
        let mut stream = self.identity.connect(tcp, Role::Site, "a").await?;
        stream.write_u8(1).await?;
        stream.flush().await?;
        stream.read_u8().await
    }

    async fn next_end(&mut self) -> String {
        timeout(LONG, self.ends.recv()).await.expect("in time").expect("the door stays open")
    }

    async fn until_half_open(&self, count: usize) {
        let reached = async {
            while self.admission.half_open() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LONG, reached).await.unwrap_or_else(|_| panic!("{} half-open", self.admission.half_open()));
    }
}

fn patient(silent_max: usize, speaking_max: usize) -> AdmissionLimits {
    AdmissionLimits { silent_max, speaking_max, silent_time: LONG, speaking_time: LONG }
}

/// A burst of connections took all descriptors while the dropped ones had not closed, and a file
/// could not be opened.
#[tokio::test]
async fn listener_waits_until_dropped_connections_have_closed() {
    let limits = patient(8, 8);
    let listener = crate::socket::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let admission = Admission::new(limits);
    let mut callers = Vec::new();
    for _ in 0..100 {
        callers.push(TcpStream::connect(at).await.expect("it listens"));
    }
    let (identity, mut ends) = (identity(), tokio::task::JoinSet::new());
    for _ in 0..callers.len() {
        let arrival = admission.accept(&listener).await;
        let open = admission.shared.lock().open as u64;
        assert!(open <= limits.descriptors() + 1, "{open} have descriptors");
        ends.spawn(arrival.identify(identity.server_config()));
    }
    drop(callers);
    let ended = async { while ends.join_next().await.is_some() {} };
    timeout(LONG, ended).await.expect("all go");
    assert_eq!(admission.shared.lock().open, 0);
}

/// #17: a listener took a slot for each silent connection, and no other peer got in when all were
/// taken.
#[tokio::test]
async fn silent_connections_of_one_address_block_no_other_address() {
    let mut door = TestListener::open(patient(8, 8));
    let honest = door.connect(2).await;
    door.until_half_open(1).await;
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(door.connect(3).await);
    }
    // 33 of the 40 were dropped, the oldest first; the first connection of the test was kept.
    for _ in 0..33 {
        assert!(door.next_end().await.contains("dropped while half-open"));
    }
    door.until_half_open(8).await;
    let mut byte = [0];
    assert_eq!(held[0].read(&mut byte).await.expect("closed in order"), 0);
    assert_eq!(door.greet(honest).await.expect("it is let in"), 1);
    assert_eq!(door.next_end().await, "welcome");
    door.until_half_open(7).await;
    // The silent address fills the table again, and a newcomer of another address still gets in.
    held.push(door.connect(3).await);
    let newcomer = door.connect(4).await;
    assert_eq!(door.greet(newcomer).await.expect("it is let in"), 1);
}

/// #17: speaking connections are counted separately from silent ones.
#[tokio::test]
async fn speaking_connection_is_not_dropped_for_silent_ones() {
    let mut door = TestListener::open(patient(4, 4));
    // All connections come from one address, and have a finished handshake without a greeting.
    let tcp = door.connect(2).await;
    let mut stream = door.identity.connect(tcp, Role::Site, "a").await.expect("it is let in");
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(door.connect(2).await);
    }
    for _ in 0..16 {
        assert!(door.next_end().await.contains("dropped while half-open"));
    }
    let greeted = async {
        stream.write_u8(1).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    assert_eq!(greeted.await.expect("it is still there"), 1);
}

#[tokio::test]
async fn each_half_open_stage_has_its_time_limit() {
    let short = Duration::from_millis(50);
    let mut door = TestListener::open(AdmissionLimits { silent_time: short, ..patient(8, 8) });
    let _silent = door.connect(2).await;
    assert_eq!(door.next_end().await, "said nothing whole within 0.1 s");
    let mut door = TestListener::open(AdmissionLimits { speaking_time: short, ..patient(8, 8) });
    let tcp = door.connect(2).await;
    let _stream = door.identity.connect(tcp, Role::Site, "a").await;
    assert_eq!(door.next_end().await, "did not finish its handshake and greeting within 0.1 s");
    assert_eq!(door.admission.half_open(), 0);
}

#[tokio::test]
async fn endless_first_message_is_refused() {
    let mut door = TestListener::open(patient(8, 8));
    let mut tcp = door.connect(2).await;
    // A message of 64 KiB in records of 4 KiB.
    let record = [&[22, 3, 1, 0x10, 0][..], &[1, 0, 0xff, 0x00], &[0; 0xffc]].concat();
    for _ in 0..4 {
        let _ = tcp.write_all(&record).await;
    }
    assert_eq!(door.next_end().await, "its first message of TLS has more than 8192 bytes");
    let mut tcp = door.connect(2).await;
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("it is open");
    assert!(door.next_end().await.contains("corrupt message"), "what is no TLS is refused at once");
}

#[test]
fn half_open_connections_take_a_minority_of_descriptors() {
    assert_eq!(AdmissionLimits::for_descriptors(1 << 20), AdmissionLimits::default());
    let few = AdmissionLimits::for_descriptors(64);
    assert_eq!((few.silent_max, few.speaking_max, few.descriptors()), (16, 8, 24));
}

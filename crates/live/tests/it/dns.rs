//! Tests of the name server over real sockets.

use anabranch_live::dns::{DnsConfig, DnsCounts, DnsServer};
use anabranch_live_proto::directory::exercise::sample;
use anabranch_live_proto::directory::names::Zone;
use anabranch_live_proto::directory::{CLIENT_SUBNET_CODE, Directory, EdgeId};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RData, RecordType};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

struct TestServer {
    address: SocketAddr,
    directory: watch::Sender<Arc<Directory>>,
    counts: Box<dyn Fn() -> DnsCounts>,
}

impl TestServer {
    fn start(change: impl FnOnce(&mut DnsConfig)) -> Self {
        let directory = Directory::new(sample()).expect("no defect");
        let (sender, receiver) = watch::channel(Arc::new(directory));
        let zone = Zone::new("live.example", vec![[127, 0, 0, 1].into()]).expect("a name");
        let mut config = DnsConfig::new(([127, 0, 0, 1], 0).into(), zone);
        change(&mut config);
        let server = DnsServer::bind(config, receiver).expect("a free port");
        let address = server.local_addr().expect("it is bound");
        let counts = Box::new(server.counter());
        tokio::spawn(server.run());
        Self { address, directory: sender, counts }
    }

    async fn udp(&self, question: &[u8]) -> Option<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        socket.send_to(question, self.address).await.expect("loopback");
        let mut buffer = [0; 2_048];
        let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.ok()?.expect("loopback");
        Some(Message::from_vec(&buffer[..length]).expect("a message"))
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }
}

fn question(name: &str, subnet: Option<&[u8]>) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).expect("a name"), RecordType::A));
    if let Some(data) = subnet {
        let mut edns = Edns::new();
        edns.options_mut().insert(EdnsOption::Unknown(CLIENT_SUBNET_CODE, data.to_vec()));
        message.set_edns(edns);
    }
    message.to_vec().expect("a message")
}

fn edges(message: &Message) -> Vec<Ipv4Addr> {
    let address = |data: &RData| if let RData::A(A(address)) = data { Some(*address) } else { None };
    message.answers.iter().filter_map(|record| address(&record.data)).collect()
}

async fn ask_tcp(stream: &mut TcpStream, question: &[u8]) -> Message {
    let length = u16::try_from(question.len()).expect("short");
    stream.write_all(&[&length.to_be_bytes(), question].concat()).await.expect("it is open");
    let length = stream.read_u16().await.expect("an answer");
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await.expect("an answer");
    Message::from_vec(&answer).expect("a message")
}

#[tokio::test]
async fn udp_and_tcp_give_equal_answers() {
    let server = TestServer::start(|_| {});
    let question = question("low.news.live.example.", Some(&[0, 1, 24, 0, 10, 2, 2]));
    let udp = server.udp(&question).await.expect("an answer");
    let mut stream = server.connect().await;
    for _ in 0..3 {
        assert_eq!(ask_tcp(&mut stream, &question).await, udp);
    }
    assert_eq!(edges(&udp), [Ipv4Addr::new(198, 51, 100, 2)]);
    let counts = (server.counts)();
    assert_eq!((counts.questions, counts.answered), (4, 4));
}

#[tokio::test]
async fn answers_follow_the_directory() {
    let server = TestServer::start(|_| {});
    let question = question("low.news.live.example.", Some(&[0, 1, 24, 0, 10, 2, 2]));
    assert_eq!(edges(&server.udp(&question).await.expect("an answer")), [Ipv4Addr::new(198, 51, 100, 2)]);
    let mut drained = sample();
    drained.edges[1].is_open = false;
    server.directory.send(Arc::new(Directory::new(drained).expect("no defect"))).expect("it is read");
    assert_eq!(edges(&server.udp(&question).await.expect("an answer")), [Ipv4Addr::new(198, 51, 100, 1)]);
    let mut empty = sample();
    empty.edges.clear();
    empty.places.clear();
    for group in &mut empty.groups {
        group.edges = Vec::<EdgeId>::new();
    }
    server.directory.send(Arc::new(Directory::new(empty).expect("no defect"))).expect("it is read");
    let message = server.udp(&question).await.expect("an answer");
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn dns_server_survives_and_counts_malformed_queries() {
    let server = TestServer::start(|_| {});
    let family = server.udp(&question("news.live.example.", Some(&[0, 9, 24, 0, 10, 2, 2]))).await;
    assert_eq!(family.expect("an answer").metadata.response_code, ResponseCode::FormErr);
    let outside = server.udp(&question("www.example.", None)).await.expect("an answer");
    assert_eq!(outside.metadata.response_code, ResponseCode::Refused);
    let mut stream = server.connect().await;
    stream.write_all(&[0xff; 64]).await.expect("it is open");
    // The kernel resets a connection that is closed with unread bytes.
    let end = stream.read(&mut [0; 1]).await;
    assert!(matches!(end, Ok(0) | Err(_)), "the length is too long: {end:?}");
    let none = server.udp(&question("x.news.live.example.", None)).await.expect("an answer");
    assert_eq!(none.metadata.response_code, ResponseCode::NXDomain);
    let counts = (server.counts)();
    assert_eq!((counts.malformed, counts.refused, counts.no_name), (1, 1, 1));
}

/// Each network can send ten queries a second even if the total limit is exhausted.
#[tokio::test]
async fn queries_above_the_rate_limit_are_dropped() {
    let server = TestServer::start(|config| config.answers_per_s_max = 1);
    let question = question("news.live.example.", None);
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    for _ in 0..100 {
        socket.send_to(&question, server.address).await.expect("loopback");
        tokio::task::yield_now().await;
    }
    let until_all = async {
        while (server.counts)().questions < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, until_all).await.expect("all arrive");
    let counts = (server.counts)();
    assert!(counts.dropped > 0 && counts.dropped + counts.answered == 100, "{counts:?}");
}

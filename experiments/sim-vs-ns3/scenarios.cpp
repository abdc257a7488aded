// The comparison's scenarios on ns-3's TCP, IP and event queue. One JSON object on stdout; --PrintHelp lists the options.
//
// ns-3's: TCP (NewReno, classic recovery), IPv4, the nodes' stacks, packets, event queue. Its headers and libraries are used
// as installed; none of its text is here. Ours: the scenarios and applications, the network, its forwarding (`TableRouting`:
// ns-3's static routing scans a list of routes for each packet, which would make it slower than it must be), and the link
// (`BareDevice`: ns-3's point-to-point device puts two bytes of PPP on each packet, and does not count the one that it is
// sending as waiting).
//
// Scenarios: `incast` (a star, synchronised blocks), `NB5` and `HASH10` (a fat tree, endless flows, as the packet simulator's
// benchmark has them), `permutation` (a fat tree, pairs as listed). Data begin at 50 ms of ns-3's clock, so that handshakes lie
// before them. Read `Parameters`, `Fabric` and `Incast` first. Compiles with ns-3.37 (C++17) and 3.44 (C++20).

#include <ns3/core-module.h>
#include <ns3/internet-module.h>
#include <ns3/network-module.h>

#include <sys/resource.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace {

using namespace ns3;

constexpr uint16_t TCP_PORT = 5001;
constexpr uint16_t ETHERTYPE_IPV4 = 0x0800;
constexpr uint32_t MSS_BYTES = 1460; // with 40 bytes of headers: 1,500 on the wire
constexpr uint32_t REQUEST_BYTES = 64;
constexpr uint64_t SERVER_JITTER_NS = 10'000; // a server waits below this before it answers
constexpr uint64_t START_JITTER_NS = 100'000; // an endless flow starts below this
constexpr uint32_t HOST_ADDRESS_BASE = 0x0a000001; // host i is 10.0.0.1 + i
constexpr uint16_t VIA_CORE = 0xffff;
constexpr int64_t DATA_START_NS = 50'000'000;

// One step of splitmix64 from state `x`.
uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

[[noreturn]] void refuse(const std::string& message) {
    std::cerr << "scenarios: " << message << "\n";
    std::exit(2);
}

double cpu_s() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Parameters {
    std::string scenario;
    uint64_t seed = 1;
    bool sack = false;
    uint64_t rate_bps = 1'000'000'000;
    int64_t delay_ns = 25'000;
    uint32_t queue_bytes = 65'536;
    uint32_t host_queue_bytes = 64'000'000;
    uint32_t initial_ssthresh_packets = 0; // 0: none
    uint32_t window_packets_max = 0;       // 0: none
    // incast
    uint32_t servers = 5;
    uint32_t block_bytes = 262'144;
    uint32_t rounds = 100;
    uint32_t warmup_rounds = 10;
    // fat tree
    uint32_t k = 0; // 0: the scenario's
    double duration_ms = 1000.0;
    std::string pairs; // "src-dst,src-dst", each receiver once
};

// ------------------------------------------------------------------------------------------------------------------------ TCP

// NewReno that counts retransmission timeouts. The trace of the congestion state is silent on a second timeout in a row.
class CountingNewReno : public TcpNewReno {
  public:
    static uint64_t timeouts;

    static TypeId GetTypeId() {
        static TypeId tid =
            TypeId("anabranch::CountingNewReno").SetParent<TcpNewReno>().AddConstructor<CountingNewReno>();
        return tid;
    }

    void CwndEvent(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCAEvent_t event) override {
        if (event == TcpSocketState::CA_EVENT_LOSS) { // raised by timeouts only
            ++timeouts;
        }
        TcpNewReno::CwndEvent(tcb, event);
    }

    Ptr<TcpCongestionOps> Fork() override { return CopyObject<CountingNewReno>(this); }
};

uint64_t CountingNewReno::timeouts = 0;
NS_OBJECT_ENSURE_REGISTERED(CountingNewReno);

void set_tcp_defaults(const Parameters& p) {
    const auto set = [](const char* name, const AttributeValue& value) { Config::SetDefault(name, value); };
    set("ns3::TcpL4Protocol::SocketType", TypeIdValue(CountingNewReno::GetTypeId()));
    // RFC 6582. ns-3's default is proportional rate reduction.
    set("ns3::TcpL4Protocol::RecoveryType", TypeIdValue(TypeId::LookupByName("ns3::TcpClassicRecovery")));
    set("ns3::TcpSocketBase::Sack", BooleanValue(p.sack));
    set("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    set("ns3::TcpSocketBase::WindowScaling", BooleanValue(true));
    set("ns3::TcpSocketBase::LimitedTransmit", BooleanValue(true));
    set("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    set("ns3::TcpSocket::SegmentSize", UintegerValue(MSS_BYTES));
    set("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    if (p.initial_ssthresh_packets > 0) {
        set("ns3::TcpSocket::InitialSlowStartThreshold", UintegerValue(p.initial_ssthresh_packets * MSS_BYTES));
    }
    set("ns3::TcpSocket::DelAckCount", UintegerValue(1)); // an acknowledgement for each packet
    set("ns3::TcpSocket::TcpNoDelay", BooleanValue(true));
    // ns-3 closes a connection after 6 timeouts in a row; these must live on.
    set("ns3::TcpSocket::DataRetries", UintegerValue(1'000'000));
    // The cap on the window is the receiver's buffer: the application reads at once, so each ACK advertises all of it.
    const uint32_t receive_bytes = p.window_packets_max > 0 ? p.window_packets_max * MSS_BYTES : 16'000'000;
    set("ns3::TcpSocket::RcvBufSize", UintegerValue(receive_bytes));
    set("ns3::TcpSocket::SndBufSize", UintegerValue(std::max(4'000'000u, 2 * p.block_bytes)));
}

// ---------------------------------------------------------------------------------------------------------------------- links

// One end of a full-duplex link: a drop-tail queue in bytes, the packet in transmission counted in, and no link header.
//
// What a device has to answer beside is the base's. Its own queue and channel are not used.
class BareDevice : public SimpleNetDevice {
  public:
    static TypeId GetTypeId() {
        static TypeId tid = TypeId("anabranch::BareDevice").SetParent<SimpleNetDevice>().AddConstructor<BareDevice>();
        return tid;
    }

    void configure(Ptr<BareDevice> peer, DataRate rate, Time delay, uint32_t queue_bytes) {
        peer_ = peer;
        rate_ = rate;
        delay_ = delay;
        queue_bytes_ = queue_bytes;
        SetMtu(1500);
    }

    bool Send(Ptr<Packet> packet, const Address&, uint16_t) override {
        const uint32_t size_bytes = packet->GetSize();
        if (backlog_bytes_ + size_bytes > queue_bytes_) {
            ++drops;
            return false;
        }
        ++packets;
        backlog_bytes_ += size_bytes;
        queue_.push_back(packet);
        if (queue_.size() == 1) {
            transmit();
        }
        return true;
    }

    void SetReceiveCallback(NetDevice::ReceiveCallback callback) override { receive_ = callback; }
    Ptr<Channel> GetChannel() const override {
        return nullptr; // the two ends know each other
    }

    bool IsLinkUp() const override { return true; }
    bool IsPointToPoint() const override { return true; }
    bool NeedsArp() const override { return false; }

    uint64_t packets = 0;
    uint64_t drops = 0;

  private:
    void transmit() {
        const Ptr<Packet> packet = queue_.front();
        const Time transmit_time = rate_.CalculateBytesTxTime(packet->GetSize());
        Simulator::ScheduleWithContext(peer_->GetNode()->GetId(), transmit_time + delay_, &BareDevice::arrive, peer_, packet);
        Simulator::Schedule(transmit_time, &BareDevice::transmit_done, this, packet->GetSize());
    }

    // The size is handed over because with no delay the far end has taken the headers off this very object by now.
    void transmit_done(uint32_t size_bytes) {
        backlog_bytes_ -= size_bytes;
        queue_.pop_front();
        if (!queue_.empty()) {
            transmit();
        }
    }

    void arrive(Ptr<Packet> packet) { receive_(this, packet, ETHERTYPE_IPV4, peer_->GetAddress()); }

    Ptr<BareDevice> peer_;
    DataRate rate_;
    Time delay_;
    uint32_t queue_bytes_ = 0;
    uint32_t backlog_bytes_ = 0;
    std::deque<Ptr<Packet>> queue_;
    NetDevice::ReceiveCallback receive_;
};

NS_OBJECT_ENSURE_REGISTERED(BareDevice);

// -------------------------------------------------------------------------------------------------------------------- routing

// The type of an argument of a method: RouteInput takes its callbacks by value in ns-3.37 and by reference in 3.44.
template <typename>
struct ArgumentsOf;

template <typename R, typename C, typename... A>
struct ArgumentsOf<R (C::*)(A...)> {
    template <size_t I>
    using at = std::tuple_element_t<I, std::tuple<A...>>;
};

using RouteInputArguments = ArgumentsOf<decltype(&Ipv4RoutingProtocol::RouteInput)>;

// Forwarding by a table: one array access for each packet.
class TableRouting : public Ipv4RoutingProtocol {
  public:
    enum class Layer {
        Host,
        Edge,
        Aggregation,
        Top, // a core switch of a fat tree, or the switch of a star
    };

    static TypeId GetTypeId() {
        static TypeId tid = TypeId("anabranch::TableRouting").SetParent<Ipv4RoutingProtocol>().AddConstructor<TableRouting>();
        return tid;
    }

    void configure(Layer layer, uint32_t half, const std::vector<uint16_t>* core_by_dst) {
        layer_ = layer;
        half_ = half;
        core_by_dst_ = core_by_dst;
    }

    // Ports are numbered in the order in which they are added.
    void add_port(Ptr<NetDevice> device, Ipv4Address source) {
        auto route = Create<Ipv4Route>();
        route->SetSource(source);
        route->SetOutputDevice(device);
        // Not looked at on links without ARP, but IPv4 refuses a route whose gateway is 0.0.0.0.
        route->SetGateway(Ipv4Address("10.255.0.1"));
        routes_.push_back(route);
    }

    void set_ports(std::vector<uint16_t> port_by_dst) { port_by_dst_ = std::move(port_by_dst); }
    Ptr<Ipv4Route> RouteOutput(Ptr<Packet>, const Ipv4Header&, Ptr<NetDevice>, Socket::SocketErrno& error) override {
        error = Socket::ERROR_NOTERROR;
        return routes_[0]; // only hosts originate packets, and they have one port
    }

    bool RouteInput(Ptr<const Packet> packet, const Ipv4Header& header, Ptr<const NetDevice> device,
                    RouteInputArguments::at<3> forward, RouteInputArguments::at<4>,
                    RouteInputArguments::at<5> deliver, RouteInputArguments::at<6>) override {
        if (layer_ == Layer::Host) {
            deliver(packet, header, ipv4_->GetInterfaceForDevice(device));
            return true;
        }
        const uint32_t dst = header.GetDestination().Get() - HOST_ADDRESS_BASE;
        uint32_t port = port_by_dst_[dst];
        if (port == VIA_CORE) {
            const uint32_t core = (*core_by_dst_)[dst];
            port = half_ + (layer_ == Layer::Edge ? core / half_ : core % half_);
        }
        forward(routes_[port], packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override {}
    void NotifyInterfaceDown(uint32_t) override {}
    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override {}
    void SetIpv4(Ptr<Ipv4> ipv4) override { ipv4_ = ipv4; }
    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override {}

  private:
    Layer layer_ = Layer::Host;
    uint32_t half_ = 0;
    const std::vector<uint16_t>* core_by_dst_ = nullptr;
    Ptr<Ipv4> ipv4_;
    std::vector<Ptr<Ipv4Route>> routes_;
    std::vector<uint16_t> port_by_dst_;
};

NS_OBJECT_ENSURE_REGISTERED(TableRouting);

// -------------------------------------------------------------------------------------------------------------------- network

// Packets taken in, and dropped, by all ports.
struct PortCounts {
    uint64_t packets = 0;
    uint64_t drops = 0;
};

class Fabric {
  public:
    using Layer = TableRouting::Layer;

    explicit Fabric(const Parameters& p)
        : parameters_(p) {
        stack_.SetIpv6StackInstall(false);
    }

    void build_star(uint32_t hosts) {
        hosts_ = hosts;
        add_layer(Layer::Host, hosts, 0);
        const size_t center = add_layer(Layer::Top, 1, 0);
        std::vector<uint16_t> ports(hosts);
        std::iota(ports.begin(), ports.end(), 0);
        for (uint32_t host = 0; host < hosts; ++host) {
            connect(host, center);
        }
        routing_[center]->set_ports(ports);
    }

    // Host x: pod x / h^2, edge (x / h) mod h, position x mod h, with h = k / 2. Core c hangs on aggregation c / h of every
    // pod, at its up port c mod h. Host d is reached over core splitmix64(d) mod h^2 if `is_hashed`, else over core
    // (d mod h) h + (d / h) mod h.
    void build_fat_tree(uint32_t k, bool is_hashed) {
        const uint32_t half = k / 2;
        const uint32_t per_pod = half * half;
        hosts_ = k * per_pod;
        for (uint32_t d = 0; d < hosts_; ++d) {
            core_by_dst_.push_back(is_hashed ? splitmix64(d) % per_pod : (d % half) * half + (d / half) % half);
        }
        add_layer(Layer::Host, hosts_, 0);
        const size_t edge = add_layer(Layer::Edge, k * half, half);
        const size_t aggregation = add_layer(Layer::Aggregation, k * half, half);
        const size_t core = add_layer(Layer::Top, per_pod, half);

        // Down ports first, then up ports, each in the order in which the tables below count them.
        for (uint32_t x = 0; x < hosts_; ++x) {
            connect(x, edge + x / half);
        }
        for (uint32_t pod = 0; pod < k; ++pod) {
            for (uint32_t i = 0; i < per_pod; ++i) {
                connect(edge + pod * half + i / half, aggregation + pod * half + i % half);
            }
        }
        for (uint32_t pod = 0; pod < k; ++pod) {
            for (uint32_t c = 0; c < per_pod; ++c) {
                connect(aggregation + pod * half + c / half, core + c);
            }
        }

        const auto fill = [&](size_t node, auto port) {
            std::vector<uint16_t> ports(hosts_);
            for (uint32_t d = 0; d < hosts_; ++d) {
                ports[d] = port(d);
            }
            routing_[node]->set_ports(ports);
        };
        for (uint32_t s = 0; s < k * half; ++s) {
            fill(edge + s, [&](uint32_t d) { return d / half == s ? d % half : VIA_CORE; });
            fill(aggregation + s, [&](uint32_t d) { return d / per_pod == s / half ? (d / half) % half : VIA_CORE; });
        }
        for (uint32_t c = 0; c < per_pod; ++c) {
            fill(core + c, [&](uint32_t d) { return d / per_pod; });
        }
    }

    Ptr<Socket> new_socket(uint32_t host) const {
        return Socket::CreateSocket(nodes_.Get(host), TcpSocketFactory::GetTypeId());
    }

    // Has `host` listen, and hands what is accepted to `accepted`. ns-3 keeps its sockets itself.
    template <typename F>
    void listen(uint32_t host, F accepted) const {
        auto listener = new_socket(host);
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), TCP_PORT));
        listener->Listen();
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                    Callback<void, Ptr<Socket>, const Address&>(
                                        [accepted](Ptr<Socket> socket, const Address&) { accepted(socket); }));
    }

    static InetSocketAddress address(uint32_t host) { return {Ipv4Address(HOST_ADDRESS_BASE + host), TCP_PORT}; }
    uint32_t hosts() const { return hosts_; }
    PortCounts counts() const {
        PortCounts sum;
        for (const auto& device : devices_) {
            sum.packets += device->packets;
            sum.drops += device->drops;
        }
        return sum;
    }

  private:
    size_t add_layer(Layer layer, uint32_t count, uint32_t half) {
        const size_t first = nodes_.GetN();
        for (uint32_t i = 0; i < count; ++i) {
            auto node = CreateObject<Node>();
            nodes_.Add(node);
            stack_.Install(node);
            auto routing = CreateObject<TableRouting>();
            routing->configure(layer, half, &core_by_dst_);
            node->GetObject<Ipv4>()->SetRoutingProtocol(routing);
            routing_.push_back(routing);
        }
        return first;
    }

    void add_port(size_t node_index, Ptr<BareDevice> device) {
        const auto node = nodes_.Get(node_index);
        device->SetAddress(Mac48Address::Allocate());
        node->AddDevice(device);
        devices_.push_back(device);
        const auto ipv4 = node->GetObject<Ipv4>();
        const uint32_t interface = ipv4->AddInterface(device);
        Ipv4Address source = Ipv4Address::GetAny();
        if (node_index < hosts_) {
            source = Ipv4Address(HOST_ADDRESS_BASE + node_index);
            ipv4->AddAddress(interface, Ipv4InterfaceAddress(source, Ipv4Mask("255.0.0.0")));
        }
        ipv4->SetUp(interface);
        routing_[node_index]->add_port(device, source);
    }

    void connect(size_t a, size_t b) {
        const auto queue_bytes = [&](size_t node) {
            return node < hosts_ ? parameters_.host_queue_bytes : parameters_.queue_bytes;
        };
        const DataRate rate(parameters_.rate_bps);
        const Time delay = NanoSeconds(parameters_.delay_ns);
        auto at_a = CreateObject<BareDevice>();
        auto at_b = CreateObject<BareDevice>();
        at_a->configure(at_b, rate, delay, queue_bytes(a));
        at_b->configure(at_a, rate, delay, queue_bytes(b));
        add_port(a, at_a);
        add_port(b, at_b);
    }

    const Parameters& parameters_;
    InternetStackHelper stack_;
    NodeContainer nodes_;
    uint32_t hosts_ = 0;
    std::vector<uint16_t> core_by_dst_;
    std::vector<Ptr<TableRouting>> routing_;
    std::vector<Ptr<BareDevice>> devices_;
};

// --------------------------------------------------------------------------------------------------------------------- incast

// The client, host 0, asks hosts 1 to `servers` for a block each, and again once it has them all.
class Incast {
  public:
    Incast(const Parameters& p, Fabric& fabric)
        : parameters_(p),
          requested_(p.servers),
          missing_bytes_(p.servers),
          to_server_(p.servers) {
        for (uint32_t server = 0; server < p.servers; ++server) {
            fabric.listen(server + 1, [this, server](Ptr<Socket> socket) {
                socket->SetRecvCallback(
                    Callback<void, Ptr<Socket>>([this, server](Ptr<Socket> s) { handle_request(server, s); }));
            });
            auto socket = fabric.new_socket(0);
            socket->Bind();
            socket->SetRecvCallback(Callback<void, Ptr<Socket>>([this, server](Ptr<Socket> s) { handle_data(server, s); }));
            to_server_[server] = socket;
            // Apart, so that the handshakes do not meet in a queue.
            Simulator::ScheduleWithContext(1, MicroSeconds(100) * int64_t(server), [socket, server]() {
                socket->Connect(Fabric::address(server + 1));
            });
        }
    }

    void start_round() {
        for (uint32_t server = 0; server < parameters_.servers; ++server) {
            missing_bytes_[server] = parameters_.block_bytes;
            to_server_[server]->Send(Create<Packet>(REQUEST_BYTES));
        }
        blocks_missing_ = parameters_.servers;
        round_start_ = Simulator::Now();
    }

    std::vector<double> round_ms; // warm-up left out

  private:
    void handle_request(uint32_t server, Ptr<Socket> socket) {
        while (auto packet = socket->Recv()) {
            requested_[server] += packet->GetSize();
        }
        if (requested_[server] < REQUEST_BYTES) {
            return;
        }
        requested_[server] -= REQUEST_BYTES;
        const uint64_t draw = splitmix64(splitmix64(splitmix64(parameters_.seed) + rounds_done_) + server);
        Simulator::Schedule(NanoSeconds(draw % SERVER_JITTER_NS), [this, socket]() {
            const int sent = socket->Send(Create<Packet>(parameters_.block_bytes));
            NS_ABORT_MSG_IF(sent != int(parameters_.block_bytes), "send buffer too small for a block");
        });
    }

    void handle_data(uint32_t server, Ptr<Socket> socket) {
        while (auto packet = socket->Recv()) {
            missing_bytes_[server] -= packet->GetSize();
        }
        if (missing_bytes_[server] > 0 || --blocks_missing_ > 0) {
            return;
        }
        if (rounds_done_ >= parameters_.warmup_rounds) {
            round_ms.push_back((Simulator::Now() - round_start_).GetSeconds() * 1e3);
        }
        if (++rounds_done_ == parameters_.warmup_rounds + parameters_.rounds) {
            Simulator::Stop();
            return;
        }
        start_round();
    }

    const Parameters& parameters_;
    uint32_t rounds_done_ = 0; // warm-up included
    std::vector<uint32_t> requested_;
    std::vector<int64_t> missing_bytes_;
    std::vector<Ptr<Socket>> to_server_;
    uint32_t blocks_missing_ = 0;
    Time round_start_;
};

void run_incast(const Parameters& p) {
    Fabric fabric(p);
    fabric.build_star(p.servers + 1);
    Incast incast(p, fabric);
    Simulator::Schedule(NanoSeconds(DATA_START_NS), [&]() { incast.start_round(); });
    Simulator::Stop(Seconds(600));
    const double cpu_s_before = cpu_s();
    Simulator::Run();
    const double run_cpu_s = cpu_s() - cpu_s_before;
    if (incast.round_ms.size() != p.rounds) {
        refuse("not done after 600 s of simulated time");
    }
    auto sorted = incast.round_ms;
    std::sort(sorted.begin(), sorted.end());
    const double time_ms = std::accumulate(sorted.begin(), sorted.end(), 0.0);
    const PortCounts counts = fabric.counts();
    std::printf("{\"goodput_mbps\":%.2f,\"round_ms_p50\":%.3f,\"timeouts\":%" PRIu64 ",\"drops\":%" PRIu64
                ",\"packet_hops\":%" PRIu64 ",\"cpu_s\":%.3f}\n",
                double(p.servers) * p.block_bytes * p.rounds * 8e-3 / time_ms,
                sorted[sorted.size() / 2],
                CountingNewReno::timeouts, counts.drops, counts.packets, run_cpu_s);
}

// -------------------------------------------------------------------------------------------------------------- endless flows

struct Flow {
    uint32_t src = 0;
    uint32_t dst = 0;
    uint64_t start_ns = 0;
    uint64_t delivered_bytes = 0; // in order, at the receiving application
    bool started = false;
    Ptr<Socket> sender;

    // Keeps the send buffer full of whole packets, so that none is merged, and in large pieces: a call for each ACK would be
    // the application's time, not the simulator's.
    void fill() {
        while (started) { // ns-3 also calls back once the handshake is done
            const uint32_t free_bytes = sender->GetTxAvailable() / MSS_BYTES * MSS_BYTES;
            if (free_bytes < 64 * MSS_BYTES || sender->Send(Create<Packet>(free_bytes)) < 0) {
                return;
            }
        }
    }
};

std::vector<Flow> flows_of(const Parameters& p, uint32_t hosts) {
    std::vector<Flow> flows;
    if (p.scenario != "permutation") {
        for (uint32_t i = 0; i < hosts; ++i) {
            Flow flow;
            flow.src = i;
            flow.dst = (i + 3 * (p.k / 2) * (p.k / 2)) % hosts;
            flow.start_ns = splitmix64(777 + i) % START_JITTER_NS;
            flows.push_back(flow);
        }
        return flows;
    }
    std::istringstream list(p.pairs);
    for (std::string pair; std::getline(list, pair, ',');) {
        Flow flow;
        if (std::sscanf(pair.c_str(), "%u-%u", &flow.src, &flow.dst) != 2 || std::max(flow.src, flow.dst) >= hosts) {
            refuse("pair " + pair + ": want SRC-DST, hosts below " + std::to_string(hosts));
        }
        flow.start_ns = splitmix64(splitmix64(p.seed) + flow.src) % START_JITTER_NS;
        flows.push_back(flow);
    }
    return flows;
}

void run_fat_tree(const Parameters& p) {
    Fabric fabric(p);
    fabric.build_fat_tree(p.k, p.scenario == "HASH10");
    auto flows = flows_of(p, fabric.hosts());
    for (auto& flow : flows) {
        Flow* f = &flow;
        fabric.listen(f->dst, [f](Ptr<Socket> socket) {
            socket->SetRecvCallback(Callback<void, Ptr<Socket>>([f](Ptr<Socket> receiver) {
                while (auto packet = receiver->Recv()) {
                    f->delivered_bytes += packet->GetSize();
                }
            }));
        });
        f->sender = fabric.new_socket(f->src);
        f->sender->Bind();
        f->sender->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>([f](Ptr<Socket>, uint32_t) { f->fill(); }));
        Simulator::ScheduleWithContext(f->src, MicroSeconds(10) * int64_t(f->src), [f]() {
            f->sender->Connect(Fabric::address(f->dst));
        });
        Simulator::ScheduleWithContext(f->src, NanoSeconds(DATA_START_NS + f->start_ns), [f]() {
            f->started = true;
            f->fill();
        });
    }

    // The handshakes are no part of the run.
    Simulator::Stop(NanoSeconds(DATA_START_NS - 1));
    Simulator::Run();
    const PortCounts before = fabric.counts();
    const double cpu_s_before = cpu_s();
    const double duration_ns = p.duration_ms * 1e6;
    Simulator::Stop(NanoSeconds(int64_t(duration_ns) + 1));
    Simulator::Run();
    const double run_cpu_s = cpu_s() - cpu_s_before;
    const PortCounts after = fabric.counts();

    uint64_t delivered = 0;
    std::string goodput_mbps;
    for (const auto& flow : flows) {
        delivered += flow.delivered_bytes / MSS_BYTES;
        char text[32];
        std::snprintf(text, sizeof text, "%s%.3f", goodput_mbps.empty() ? "" : ",", flow.delivered_bytes * 8e3 / duration_ns);
        goodput_mbps += text;
    }
    std::printf("{\"delivered\":%" PRIu64 ",\"packet_hops\":%" PRIu64 ",\"drops\":%" PRIu64 ",\"timeouts\":%" PRIu64
                ",\"cpu_s\":%.3f,\"flow_goodput_mbps\":[%s]}\n",
                delivered, after.packets - before.packets, after.drops - before.drops, CountingNewReno::timeouts, run_cpu_s,
                goodput_mbps.c_str());
}

} // namespace

int main(int argc, char** argv) {
    Parameters p;
    CommandLine line;
    line.AddValue("scenario", "incast, NB5, HASH10 or permutation", p.scenario);
    line.AddValue("seed", "of the jitters", p.seed);
    line.AddValue("sack", "selective acknowledgements", p.sack);
    line.AddValue("initial_ssthresh_packets", "permutation: where slow start ends (0: at a loss)", p.initial_ssthresh_packets);
    line.AddValue("queue_bytes", "incast, permutation: drop-tail limit of a switch's port", p.queue_bytes);
    line.AddValue("servers", "incast: servers", p.servers);
    line.AddValue("rounds", "incast: rounds that count", p.rounds);
    line.AddValue("warmup_rounds", "incast: rounds before those that count", p.warmup_rounds);
    line.AddValue("k", "fat tree: ports of each switch (0: 4 for permutation, else 8)", p.k);
    line.AddValue("duration_ms", "permutation: simulated time", p.duration_ms);
    line.AddValue("pairs", "permutation: \"src-dst,src-dst\", each receiver once", p.pairs);
    line.Parse(argc, argv);
    if (p.k == 0) {
        p.k = p.scenario == "permutation" ? 4 : 8;
    }
    if (p.scenario == "NB5" || p.scenario == "HASH10") {
        const bool is_hashed = p.scenario == "HASH10";
        p.rate_bps = 10'000'000'000;
        p.delay_ns = 2'000;
        p.queue_bytes = p.host_queue_bytes = 384'000;
        p.duration_ms = is_hashed ? 10.0 : 5.0;
        (is_hashed ? p.initial_ssthresh_packets : p.window_packets_max) = is_hashed ? 100 : 64;
    } else if (p.scenario == "permutation") {
        p.delay_ns = 10'000;
        p.host_queue_bytes = p.queue_bytes;
    } else if (p.scenario != "incast") {
        refuse("scenario " + p.scenario + ": must be incast, NB5, HASH10 or permutation");
    }
    if (p.k % 2 != 0 || p.rounds == 0) {
        refuse("k must be even, rounds at least 1");
    }

    set_tcp_defaults(p);
    p.scenario == "incast" ? run_incast(p) : run_fat_tree(p);
    std::fflush(stdout);
    // No Simulator::Destroy: freeing what the process is about to give back takes longer than some of the runs.
    std::quick_exit(0);
}
